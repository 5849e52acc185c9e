"""Statements as PostgreSQL's own log has them, and what is counted of them.

The log is JSON, a line for each statement once it has run, with the transaction's number where it
has written. Statements of the named queries of `store/postgres/sql/` have their names.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache

import msgspec

from holdfast.store.postgres.connection.queries import QUERIES, load_schema

LOG_SETTINGS: Mapping[str, str] = {
    "logging_collector": "on",
    "log_destination": "jsonlog",
    "log_filename": "statements",
    "log_rotation_size": "0",
    "log_rotation_age": "0",
    "log_min_duration_statement": "0",
    "log_parameter_max_length": "0",
}
OWN_NAME = "bench.counts"
"""The name of the connections that count, whose statements are not counted."""
_RAN = re.compile(r"duration: [0-9.]+ ms  (?:statement|execute [^:]*): (.*)", re.DOTALL)
_GIVEN = re.compile(r"%\(\w+\)s|\$\d+")
_FUNCTION = re.compile(r"create function (\w+)\(.*?\$\$(.*?)\$\$", re.DOTALL)
_RELAXES = r"synchronous_commit(?:', '| = | to )off"


class Statement(msgspec.Struct, frozen=True):
    """A statement that ran. name: of the named query, or its first words. session: the server
    process that ran it. wrote: its transaction had written by its end. relaxes: it lets a crash
    of the server lose the transaction."""

    name: str
    session: int
    wrote: bool
    relaxes: bool


class _Line(msgspec.Struct):
    message: str = ""
    pid: int = 0
    txid: int = 0
    application_name: str = ""
    backend_type: str = ""


_decode = msgspec.json.Decoder(_Line).decode


def read_statements(log: bytes) -> list[Statement]:
    """Return the statements of a part of the log, without those of the connections that count."""
    found = []
    for raw in log.splitlines():
        line = _decode(raw)
        if line.application_name == OWN_NAME or line.backend_type != "client backend":
            continue
        if (ran := _RAN.match(line.message)) is not None:
            text = ran[1]
            relaxes = bool(_relaxing().search(text))
            found.append(Statement(name_statement(text), line.pid, line.txid != 0, relaxes))
    return found


@cache
def name_statement(text: str) -> str:
    """Return the name of the query that this is, or its first words."""
    plain = _flatten(text)
    return _names().get(plain, plain[:60])


@cache
def _names() -> dict[str, str]:
    found: dict[str, str] = {}
    for name, query in QUERIES.items():  # some queries have one text: it has the first name
        found.setdefault(_flatten(query.decode().replace("%%", "%")), name)
    return found


@cache
def _relaxing() -> re.Pattern[str]:
    """Find what lets a crash lose a transaction: the setting, or a function that sets it."""
    functions = [
        name for name, body in _FUNCTION.findall(load_schema()) if re.search(_RELAXES, body)
    ]
    return re.compile("|".join((_RELAXES, *(rf"\b{name}\(" for name in functions))))


def _flatten(text: str) -> str:
    return " ".join(_GIVEN.sub("$", text).split())


def count_names(statements: Iterable[Statement]) -> Counter[str]:
    """Return how often each statement ran."""
    return Counter(one.name for one in statements)


def count_transactions(statements: Iterable[Statement]) -> tuple[int, int]:
    """Return how many transactions were begun, and how many commits waited for the disk: those of
    transactions that wrote, and of lone statements that wrote, unless a crash may lose them."""
    begun = waited = 0
    open_now: dict[int, tuple[bool, bool]] = {}  # by session: it wrote, a crash may lose it
    for one in statements:
        wrote, relaxed = open_now.get(one.session, (False, False))
        if one.name == "begin":
            begun += 1
            open_now[one.session] = (False, False)
        elif one.name in ("commit", "rollback"):
            open_now.pop(one.session, None)
            waited += one.name == "commit" and wrote and not relaxed
        elif one.session in open_now:
            relaxed = (relaxed and one.name != "commit_for_good") or one.relaxes
            open_now[one.session] = (wrote or one.wrote, relaxed)
        else:
            waited += one.wrote and not one.relaxes
    return begun, waited
