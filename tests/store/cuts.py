"""Calls that are cut off at one of their awaits, as a client that leaves or a deadline cuts them, and
a look at the connections afterwards."""

from __future__ import annotations

import asyncio
import os
import random
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, ClassVar

from holdfast.store.postgres.connection.pipeline import Statement
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.store import PostgresStore

MOST_AWAITS = 5_000
DRAWN = 3
SEED = os.environ.get("HOLDFAST_CUT_SEED", "1")
_LOOK = (
    b"select array[7] as seven, pg_current_xact_id_if_assigned() is null as outside,"
    b" array(select name || '=' || setting from pg_settings where source in ('session', 'client')"
    b" and name not in ('transaction_isolation', 'transaction_read_only')"  # of their transaction
    b" order by 1) as settings"
)


@types.coroutine
def _cut_at(work: Coroutine[Any, Any, Any], number: int) -> Generator[Any, Any, int]:
    """Run `work`, and cancel the present task when `work` has awaited `number` times. Return how
    often `work` has awaited."""
    awaits = 0
    error: BaseException | None = None
    while True:
        try:
            waiting = work.send(None) if error is None else work.throw(error)
        except StopIteration:
            return awaits
        awaits += 1
        if awaits == number:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        try:
            error = yield waiting
        except BaseException as thrown:
            error = thrown


async def cut(work: Coroutine[Any, Any, Any], number: int, seconds: float = 60) -> bool:
    """Run `work` in a task that is cancelled at its await of that number, or after `seconds`.
    Return whether it was cancelled before it came to its end."""
    was_cut = False

    async def run() -> None:
        nonlocal was_cut
        try:
            await _cut_at(work, number)
        finally:
            task = asyncio.current_task()
            was_cut = task is not None and task.cancelling() > 0

    with suppress(asyncio.CancelledError, Exception):
        await asyncio.wait_for(asyncio.create_task(run()), seconds)
    return was_cut


async def cut_everywhere(
    make: Callable[[], Coroutine[Any, Any, Any]], look: Callable[[], Awaitable[None]]
) -> int:
    """Run the work that `make` returns again and again, cut at its first await, its second and so
    on until it comes to its end, with a look after each. Return the number of cuts, at least one:
    where the server is quick, a call awaits nothing, and is made again."""
    cuts = 0
    for _ in range(MOST_AWAITS):
        was_cut = await cut(make(), cuts + 1)
        await look()
        if cuts and not was_cut:
            return cuts
        cuts += was_cut
    raise AssertionError(f"the work goes on after {MOST_AWAITS} awaits")


async def look_at(session: Session) -> object:
    """Return what statements see on each connection that the pool has, all of them at once."""
    pool = session._pool
    assert pool is not None
    count = max(1, pool.get_stats()["pool_size"])
    together = asyncio.Barrier(count)

    async def ask(tx: Tx) -> list[dict[str, Any]]:
        await together.wait()
        first = await tx.conn.run_all((Statement(_LOOK),))
        others = await tx.conn.run_all((Statement(_LOOK), Statement(b"select 8 as eight")))
        return [row for found in (*first, *others) for row in found.rows]

    found = await asyncio.gather(*(session.single(ask) for _ in range(count)))
    for rows in found:
        assert rows == found[0], (rows, found[0])
    return found[0]


class CutCalls:
    """The calls of a store's methods that a test made, to be made again and cut."""

    done: ClassVar[set[str]] = set()
    """The methods that were cut already, after this test or another."""

    def __init__(self, store: PostgresStore) -> None:
        self._session = store.session
        self._calls: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {}
        for place, part in vars(store).items():
            for name in () if part is store.session else dir(type(part)):
                word = f"{place}.{name}"
                if not name.startswith("_") and word not in self.done:
                    method = getattr(part, name)
                    if asyncio.iscoroutinefunction(method):
                        setattr(part, name, self._noted(word, method))

    def _noted(self, word: str, method: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **named: Any) -> Any:
            self._calls.setdefault(word, lambda: method(*args, **named))
            return await method(*args, **named)

        return call

    async def cut_each(self) -> None:
        """Make each call again, cut at three of its awaits that are drawn, and compare what the
        next statement on that connection sees with what it saw before."""
        for word, make in self._calls.items():
            self.done.add(word)
            before = await look_at(self._session)
            awaits = 0
            with suppress(Exception):  # most calls can be made once
                awaits = await _cut_at(make(), 0)
            chance = random.Random(f"{SEED} {word}")
            for number in chance.sample(range(1, awaits + 1), min(DRAWN, awaits)):
                await cut(make(), number)
                after = await look_at(self._session)
                assert after == before, f"{word}, cut at await {number} (seed {SEED})"
