"""Every number that a process reads from a wire has bounds (`holdfast.bounds`)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from holdfast.bounds import MAX_COUNT, MAX_LARGE, MAX_MEMORY_BYTES, Elapsed, within
from holdfast.controller.routes import ENDPOINTS
from holdfast.core.fleet.pools import PoolSpec
from tests.unit.wire.test_hostile_frames import JSON, PACKED

CHECKED_WHERE_USED = {
    # The guardian looks at each: one in a list must not cost the others (GUARD-2).
    "LaunchTask.deadline", "LaunchTask.grace_seconds", "StopTask.grace_seconds", "Extend.deadlines",
    # By the table of settings, and by the operators' own configuration of a provider.
    "SettingsPatch.set",
}  # fmt: skip


def find_unbounded(kind: inspect.Type, at: str, seen: set[type]) -> Iterator[str]:
    """Yield the fields of `kind` that hold a number without a lowest or a highest value."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            low = kind.ge if kind.ge is not None else kind.gt
            high = kind.le if kind.le is not None else kind.lt
            if (low is None or high is None) and at not in CHECKED_WHERE_USED:
                yield at
        case inspect.UnionType():
            for each in kind.types:
                yield from find_unbounded(each, at, seen)
        case inspect.ListType() | inspect.VarTupleType() | inspect.SetType():
            yield from find_unbounded(kind.item_type, at, seen)
        case inspect.TupleType():
            for each in kind.item_types:
                yield from find_unbounded(each, at, seen)
        case inspect.DictType():
            yield from find_unbounded(kind.key_type, at, seen)
            yield from find_unbounded(kind.value_type, at, seen)
        case inspect.StructType() if kind.cls not in seen:
            seen.add(kind.cls)
            for field in kind.fields:
                yield from find_unbounded(field.type, f"{kind.cls.__name__}.{field.name}", seen)


def list_unbounded(kind: Any) -> list[str]:
    return list(find_unbounded(inspect.type_info(kind), str(kind), set()))


BODIES = [e.body for e in ENDPOINTS if isinstance(e.body, type)]
QUERIES = [e.query for e in ENDPOINTS if e.query is not None]


@pytest.mark.parametrize("kind", [*PACKED, *JSON, *BODIES, *QUERIES, PoolSpec])
def test_every_number_of_a_message_has_bounds(kind: Any) -> None:
    assert list_unbounded(kind) == []


def test_a_number_without_bounds_would_be_seen() -> None:
    class Odd(msgspec.Struct):
        deep: list[dict[str, tuple[int, float | None]]] = []

    assert list_unbounded(Odd) == ["Odd.deep", "Odd.deep"]


@given(st.floats())
def test_no_bound_lets_a_number_through_that_is_none(value: float) -> None:
    try:
        read = msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=Elapsed)
    except msgspec.ValidationError:
        assert not 0 <= value <= 1e9
    else:
        assert math.isfinite(read)


def test_sums_of_what_is_allowed_fit_the_columns() -> None:
    assert 1024 * MAX_MEMORY_BYTES < 2**63
    assert 2 * MAX_LARGE <= 2**63
    assert MAX_COUNT < 2**31


@given(st.one_of(st.none(), st.floats(), st.integers(-(2**70), 2**70)))
def test_what_a_driver_does_not_know_is_none(value: float | None) -> None:
    found = within(value, 0, 100)
    assert found is None or (found == value and 0 <= found <= 100)
