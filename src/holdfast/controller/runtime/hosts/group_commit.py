"""Group commit: what arrives during a store call goes together in the next one.

BATCH-1  What comes while no store call is in flight goes at once; it waits for no others.
BATCH-2  One call is in flight. A sender is in it at most once, and what it sends goes in the order it
         came.
BATCH-3  One bad member does not make its neighbours fail: a batch that fails while the store answers
         is taken again one by one.
BATCH-4  The members of a batch weigh no more together than one call can serve, unless it has only one.
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
    """Gathers what many senders hand in, for one store call.

    noun: what is handed in, for the log. sender_of: its sender's name. send: the store call, an
    answer for each. renews: it carries the renewals of leases (`Outages`). weigh: what one of them
    asks of a store call, of which a batch has `most`.
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
        """Return the store's answer to `item`. Raises Unavailable when the store is away: it may
        have been taken, and sending it again is right."""
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
        """Take what goes together now."""
        batch: list[tuple[A, asyncio.Future[B]]] = []
        senders: set[str] = set()
        left: deque[tuple[A, asyncio.Future[B]]] = deque()
        weight = 0
        while self._pending and len(batch) < MAX_BATCH:
            item, answer = waiting = self._pending.popleft()
            if answer.done():  # its caller has gone
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
