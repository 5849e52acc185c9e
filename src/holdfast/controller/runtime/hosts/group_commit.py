"""Group commit: items that arrive during a store call go together in the next one.

BATCH-1  An item that arrives while no store call is in flight is sent at once; it waits for no
         others.
BATCH-2  One call is in flight. A sender has at most one item in it, and the items of a sender go in
         the order in which they came.
BATCH-3  One bad item does not make its neighbours fail: a batch that fails while the store answers
         is sent again one item at a time.
BATCH-4  The items of a batch weigh no more together than one call can serve, unless the batch has
         only one item.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic, TypeVar

from holdfast.controller.runtime.outages import Outages
from holdfast.errors import HoldfastError, Unavailable

log = logging.getLogger("holdfast.controller")
MAX_BATCH = 256
_CLOSE_SECONDS = 1.0
A = TypeVar("A")
B = TypeVar("B")


class GroupCommit(Generic[A, B]):
    """Gathers the items of many senders for one store call.

    noun: the word for an item in the log. sender_of: returns the name of an item's sender. send:
    makes the store call and returns an answer for each item. renews: True where items carry
    renewals of leases (`Outages`). weigh: returns the load that an item puts on a store call. most:
    the largest load of one batch.
    """

    def __init__(
        self,
        noun: str,
        sender_of: Callable[[A], str],
        send: Callable[[Sequence[A]], Awaitable[Sequence[B]]],
        outages: Outages,
        *,
        renews: bool = False,
        weigh: Callable[[A], int] = lambda _: 1,
        most: int = MAX_BATCH,
    ) -> None:
        self._noun = noun
        self._sender_of = sender_of
        self._send_all = send
        self._outages = outages
        self._renews = renews
        self._weigh = weigh
        self._most = most
        self._pending: deque[tuple[A, asyncio.Future[B]]] = deque()
        self._call: asyncio.Task[None] | None = None

    async def submit(self, item: A) -> B:
        """Return the store's answer to `item`. Raises Unavailable when the store is away: the item
        may have been applied all the same, and sending it again is safe."""
        answer: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        self._pending.append((item, answer))
        if self._call is None:
            self._call = asyncio.create_task(self._run())
        return await answer

    async def close(self) -> None:
        """Let the batch in flight and those behind it end, within `_CLOSE_SECONDS`."""
        if self._call is not None:
            await asyncio.wait([call := self._call], timeout=_CLOSE_SECONDS)
            call.cancel()

    async def _run(self) -> None:
        try:
            while batch := self._take_batch():
                if self._renews:
                    with self._outages.asking():
                        await self._send(batch)
                else:
                    await self._send(batch)
        finally:
            self._call = None
            # Nothing is pending now, unless this was cancelled.
            _fail(self._pending, Unavailable("the server shuts down"))
            self._pending.clear()

    def _take_batch(self) -> list[tuple[A, asyncio.Future[B]]]:
        """Remove the next batch from the waiting items and return it."""
        batch: list[tuple[A, asyncio.Future[B]]] = []
        senders: set[str] = set()
        left: deque[tuple[A, asyncio.Future[B]]] = deque()
        weight = 0
        while self._pending and len(batch) < MAX_BATCH:
            item, answer = waiting = self._pending.popleft()
            if answer.done():  # the sender has gone
                continue
            sender = self._sender_of(item)
            if sender in senders:
                left.append(waiting)
                continue
            weight += self._weigh(item)
            if batch and weight > self._most:
                left.append(waiting)
                break
            batch.append(waiting)
            senders.add(sender)
        self._pending.extendleft(reversed(left))
        return batch

    async def _send(self, batch: Sequence[tuple[A, asyncio.Future[B]]]) -> None:
        try:
            answers = await self._send_all([item for item, _ in batch])
        except Unavailable as error:
            self._outages.note_failure(error)
            return _fail(batch, error)
        except Exception as error:
            if len(batch) == 1:
                if not isinstance(error, HoldfastError):
                    sender = self._sender_of(batch[0][0])
                    log.exception("a %s of %s failed", self._noun, sender)
                return _fail(batch, error)
            text = "a batch of %d %ss failed and is taken one by one: %r"
            log.warning(text, len(batch), self._noun, error)
            for waiting in batch:
                await self._send([waiting])
            return
        if self._renews:
            self._outages.note_renewal()
        for (_, waiter), answer in zip(batch, answers, strict=True):
            if not waiter.done():
                waiter.set_result(answer)


def _fail(batch: Iterable[tuple[A, asyncio.Future[B]]], error: Exception) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
