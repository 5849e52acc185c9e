"""A list that is sent as an array comes back as it was."""

from __future__ import annotations

import math
from enum import IntEnum, StrEnum
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.store.postgres.connection.arrays import ColumnDumper

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
AWKWARD = st.sampled_from(
    ["", "null", "NULL", '"', '""', "\\", '\\"', "{", "}", "{}", ",", '","', " ", "\n", "\u2003"]
)
LONG = st.integers(-(2**63), 2**63 - 1)
COLUMNS: dict[str, st.SearchStrategy[Any]] = {
    "text": TEXT | AWKWARD,
    "bigint": LONG,
    "boolean": st.booleans(),
    "double precision": st.floats(allow_nan=False),
}


class Word(StrEnum):
    ONE = "one"


class Number(IntEnum):
    ONE = 1


def connect(dsn: str) -> psycopg.Connection[Any]:
    connection = psycopg.connect(dsn, autocommit=True)
    connection.adapters.register_dumper(list, ColumnDumper)
    return connection


def send(connection: psycopg.Connection[Any], kind: str, values: list[Any]) -> list[Any]:
    row = connection.execute(f"select %s::{kind}[]".encode(), [values]).fetchone()
    assert row is not None
    found: list[Any] = row[0]
    return found


@pytest.mark.parametrize("kind", COLUMNS)
@settings(
    max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(data=st.data())
def test_a_column_comes_back_as_it_was(pg_emptied: str, kind: str, data: st.DataObject) -> None:
    element = COLUMNS[kind]
    few = st.lists(element | st.none(), min_size=1, max_size=3).flatmap(
        lambda some: st.lists(st.sampled_from(some), min_size=9, max_size=20)
    )
    column = st.lists(element) | st.lists(element | st.none()) | few
    columns = st.lists(column, min_size=8, max_size=20)
    with connect(pg_emptied) as connection:
        for values in data.draw(columns):
            assert send(connection, kind, values) == values


def test_what_is_not_plain_is_left_to_the_driver(pg_emptied: str) -> None:
    with connect(pg_emptied) as connection:
        assert send(connection, "text", [Word.ONE, "two"]) == ["one", "two"]
        assert send(connection, "integer", [Number.ONE]) == [1]
        assert send(connection, "integer", [[1, 2], [3, 4]]) == [[1, 2], [3, 4]]
        assert math.isnan(send(connection, "double precision", [math.nan])[0])
        with pytest.raises(psycopg.DataError, match="NUL"):
            send(connection, "text", ["a", "b\0c"])
        with pytest.raises(UnicodeEncodeError):
            send(connection, "text", ["\ud800"])
