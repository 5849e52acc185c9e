"""A still controller with one more statement in it: `python -m tests.system.costs.broken NAME… --
server …` runs one beside each named query."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from bench.counts import still

from holdfast.store.postgres.connection.pipeline import Connection, Statement, StatementResult
from holdfast.store.postgres.connection.queries import QUERIES

MORE = "select 'one more'"


def break_queries(names: Sequence[str]) -> None:
    """Run one more statement before each of these."""
    broken = {QUERIES[name] for name in names}
    run_all = Connection.run_all

    async def run_more(self: Connection, statements: Sequence[Statement]) -> list[StatementResult]:
        if broken.isdisjoint(one.query for one in statements):
            return await run_all(self, statements)
        return (await run_all(self, [Statement(MORE.encode()), *statements]))[1:]

    Connection.run_all = run_more


if __name__ == "__main__":
    words = sys.argv[1:]
    middle = words.index("--")
    break_queries(words[:middle])
    sys.argv[1:] = words[middle + 1 :]
    still.run()
