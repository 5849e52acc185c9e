"""Group commit: what arrives during a store call goes together in the next one.

BATCH-1  What comes while no store call is in flight goes at once; it waits for no others.
BATCH-2  A sender is at most once among the calls in flight, and what it sends goes in the order it
         came.
BATCH-3  One bad member does not make its neighbours fail: a batch that fails while the store answers
         is taken again one by one.
BATCH-4  The members of a batch weigh no more together than one call can serve, unless it has only one.
BATCH-5  A second call goes beside the first when what waits for it is heavy, and as heavy as the
         first, because then one of them can be computed here while the database works on the other.
         Light members wait and share a call.
BATCH-6  Beside another call, answers are handed out one a turn of the loop, because it takes up to a
         millisecond to write one out, and the other call's transaction would wait for all of them
         with its locks held.
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
    asks of a store call, of which a batch has `most`. heavy: the weight from which a second call
    goes beside the first; None for never.
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
        heavy: int | None = None,
    ) -> None:
        self._noun = noun
        self._sender_of = sender_of
        self._send_all = send
        self._outages = outages
        self._renews = renews
        self._weigh = weigh
        self._most = most
        self._heavy = heavy
        self._pending: deque[tuple[A, asyncio.Future[B]]] = deque()
        self._weight = 0  # of all that is pending
        self._asked = 0  # the weight of what is in flight
        self._senders: set[str] = set()  # of what is in flight
        self._calls: set[asyncio.Task[None]] = set()

    async def submit(self, item: A) -> B:
        """Return the store's answer to `item`. Raises Unavailable when the store is away: it may
        have been taken, and sending it again is right."""
        answer: asyncio.Future[B] = asyncio.get_running_loop().create_future()
        self._pending.append((item, answer))
        self._weight += self._weigh(item)
        if not self._calls or (len(self._calls) == 1 and self._is_heavy()):
            self._calls.add(asyncio.create_task(self._run()))
        return await answer

    async def close(self) -> None:
        """Let the batches in flight and those behind them end, within `_CLOSE_SECONDS`."""
        if self._calls:
            await asyncio.wait(self._calls, timeout=_CLOSE_SECONDS)
            for call in self._calls:
                call.cancel()

    def _is_heavy(self) -> bool:
        return self._heavy is not None and self._weight >= max(self._heavy, self._asked)

    async def _run(self) -> None:
        call = asyncio.current_task()
        assert call is not None
        try:
            while (len(self._calls) == 1 or self._is_heavy()) and (batch := self._take_batch()):
                weight = sum(self._weigh(item) for item, _ in batch)
                self._asked += weight
                senders = {self._sender_of(item) for item, _ in batch}
                self._senders |= senders
                try:
                    if self._renews:
                        with self._outages.asking():
                            await self._send(batch)
                    else:
                        await self._send(batch)
                finally:
                    self._senders -= senders
                    self._asked -= weight
        finally:
            self._calls.discard(call)
            if not self._calls:  # nothing is pending then, unless this was cancelled
                _fail(self._pending, Unavailable("the server shuts down"))
                self._pending.clear()
                self._weight = 0

    def _take_batch(self) -> list[tuple[A, asyncio.Future[B]]]:
        """Take what goes together now; nothing where only senders in flight have something."""
        batch: list[tuple[A, asyncio.Future[B]]] = []
        senders = set(self._senders)
        left: deque[tuple[A, asyncio.Future[B]]] = deque()
        weight = 0
        while self._pending and len(batch) < MAX_BATCH:
            item, answer = waiting = self._pending.popleft()
            if answer.done():  # its caller has gone
                self._weight -= self._weigh(item)
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
        self._weight -= sum(self._weigh(item) for item, _ in batch)
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
        waiters = [waiter for _, waiter in batch]
        left = deque(zip(waiters, answers, strict=True))
        _hand_out(left, 1 if len(self._calls) > 1 else len(left))


def _hand_out(left: deque[tuple[asyncio.Future[B], B]], at_once: int) -> None:
    """Give so many answers now, and as many in each turn of the loop (BATCH-6)."""
    for _ in range(min(at_once, len(left))):
        waiter, answer = left.popleft()
        if not waiter.done():
            waiter.set_result(answer)
    if left:
        asyncio.get_running_loop().call_soon(_hand_out, left, at_once)


def _fail(batch: Iterable[tuple[A, asyncio.Future[B]]], error: Exception) -> None:
    for _, waiter in batch:
        if not waiter.done():
            waiter.set_exception(error)
