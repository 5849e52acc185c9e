"""The walks on PostgreSQL can fail: a guard of one of the store's own statements is taken away, and
each time a promise has to be seen broken.

Off by default, because finding takes up to minutes per mutant: `make soak` runs it. What both
stores share is broken by `test_mutants`.
"""

from __future__ import annotations

import pytest

from holdfast.errors import InvalidTransition
from holdfast.store.postgres.connection.queries import QUERIES
from tests.protocol.drives import drive_postgres
from tests.protocol.test_postgres import make_machine, walk
from tests.store.pg_fixture import PgServer

WALKS = 60
TTL = "lease_until = greatest(t.lease_until, l.now + t.lease_ttl_seconds * l.second)"
# What is broken: the statement, the words that guard, the words in their place.
MUTANTS = {
    "an earlier incarnation is heard": (
        "touch_hosts", "b.incarnation = g.incarnation as same", "true as same"
    ),
    "a lease is not renewed": ("touch_and_renew", TTL, "lease_until = t.lease_until"),
    "a lease is shorter in the store": (
        "touch_and_renew", TTL, TTL.replace("greatest(t.lease_until, ", "(").replace("l.second", "l.second / 2")
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", MUTANTS)
def test_the_words_that_are_broken_are_there(what: str) -> None:
    """A break that replaces words which have moved breaks nothing."""
    name, guard, _ = MUTANTS[what]
    assert QUERIES[name].decode().count(guard) == 1


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("what", MUTANTS)
def test_a_broken_statement_is_noticed(
    what: str, pg_server: PgServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, guard, instead = MUTANTS[what]
    broken = QUERIES[name].decode().replace(guard, instead)
    monkeypatch.setitem(QUERIES, name, broken.encode())
    with pytest.raises((AssertionError, InvalidTransition)) as noticed:
        walk(make_machine(drive_postgres(pg_server)), 0, WALKS)
    print(f"{what}: {type(noticed.value).__name__}: {str(noticed.value)[:160]}")
