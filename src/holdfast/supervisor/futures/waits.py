"""The two ways to wait for many futures: `wait` and `as_completed`."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.supervisor.futures.future import Future

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("holdfast.supervisor")

LOG_SECONDS = 10.0


class Waited(NamedTuple):
    """The result of `wait`: the futures that are done, and the others."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


def wait(
    futures: Iterable[Future[Any]],
    timeout: float | None = None,
    return_when: str = ALL_COMPLETED,
    log_interval: float | None = LOG_SECONDS,
) -> Waited:
    """Wait for many futures; return the futures that are done, after `timeout` seconds at the
    latest.

    return_when: ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(
            f"return_when={return_when!r} is none of ALL_COMPLETED, FIRST_COMPLETED, "
            "FIRST_EXCEPTION"
        )
    all_futures = set(futures)
    if return_when == ALL_COMPLETED:
        if _wait_for_all(all_futures, timeout, log_interval):
            return Waited(all_futures, set())
        done = {future for future in all_futures if future.done()}
        return Waited(done, all_futures - done)
    stream = as_completed(all_futures, timeout, log_interval)
    done = set()
    try:
        for future in stream:
            done.add(future)
            if return_when == FIRST_COMPLETED or (
                return_when == FIRST_EXCEPTION and future.failed()
            ):
                break
    except TimeoutError:
        pass  # the partial result is the result
    finally:
        stream.close()
    done |= {future for future in all_futures if future.done()}
    return Waited(done, all_futures - done)


def _wait_for_all(
    futures: Iterable[Future[Any]], timeout: float | None, log_interval: float | None
) -> bool:
    """Return True when all futures are done, and False where some are pending after `timeout`
    seconds.

    The wait sleeps on one future at a time, so that thousands can finish without a hook on each,
    and without waking this thread for each.
    """
    pending = list(futures)
    clock = _Clock(pending, timeout, log_interval)
    with contextlib.suppress(TimeoutError):
        while pending:
            if pending[-1].done() or pending[-1].wait(clock.check()):
                pending.pop()
    return not pending


class _Clock:
    """The deadline of a wait, and the times at which its pending futures are logged."""

    def __init__(
        self, pending: Iterable[Future[Any]], timeout: float | None, log_interval: float | None
    ) -> None:
        self._pending = pending
        self._began = time.monotonic()
        self._timeout = timeout
        self._log_interval = log_interval
        self._deadline = None if timeout is None else self._began + timeout
        self._log_at = None if log_interval is None else self._began + log_interval

    def check(self) -> float | None:
        """Return how long to sleep at most, and log the pending futures when that is due. Raises
        TimeoutError past the deadline."""
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise TimeoutError(f"after {self._timeout:g} s: {self._describe()}")
        if self._log_at is not None and self._log_interval is not None and now >= self._log_at:
            logger.info("waiting for %.0f s: %s", now - self._began, self._describe())
            self._log_at = now + self._log_interval
        waits = [due - now for due in (self._deadline, self._log_at) if due is not None]
        return max(0.0, min(waits)) if waits else None

    def _describe(self) -> str:
        left = [future for future in list(self._pending) if not future.done()]
        by_kind: dict[str, list[str]] = {}
        for future in left:
            by_kind.setdefault(future.about or "a result", []).append(str(future.whom or "?"))
        parts = []
        for about, whom in by_kind.items():
            more = f" and {len(whom) - 5} more" if len(whom) > 5 else ""
            parts.append(f"{about} of {', '.join(sorted(whom)[:5])}{more}")
        return f"{len(left)} not done: " + ("; ".join(parts) or "none")


class as_completed:
    """Iterate over futures as they are done; `add` and `update` add more on the way. Also `async
    for`.

    Raises TimeoutError from the iteration when `timeout` seconds from the start have passed and
    some futures are not done. While it waits it logs, every `log_interval` seconds (None: never),
    which futures of which hosts and processes are pending.
    """

    def __init__(
        self,
        futures: Iterable[Future[Any]] = (),
        timeout: float | None = None,
        log_interval: float | None = LOG_SECONDS,
    ) -> None:
        self._ready: deque[Future[Any]] = deque()
        self._wake = threading.Condition(threading.Lock())
        self._pending: set[Future[Any]] = set()
        self._clock = _Clock(self._pending, timeout, log_interval)
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        self.update(futures)

    def add(self, future: Future[Any]) -> None:
        """Wait for this future too. A future that is pending here already is not yielded twice."""
        if future in self._pending:
            return
        self._pending.add(future)
        future.add_hook(self._take)

    def update(self, futures: Iterable[Future[Any]]) -> None:
        """Wait for these futures too."""
        for future in futures:
            self.add(future)

    def close(self) -> None:
        """Wait for no more futures."""
        for future in list(self._pending):
            if not future.done():
                future.remove_hook(self._take)
        self._pending.clear()
        self._ready.clear()

    def __len__(self) -> int:
        return len(self._pending)

    def __iter__(self) -> Iterator[Future[Any]]:
        return self

    def __next__(self) -> Future[Any]:
        while True:
            if self._ready:
                return self._yield_one()
            if not self._pending:
                raise StopIteration
            # Outside the lock, which the bus's thread may want: the check logs, and that can take
            # long.
            seconds = self._clock.check()
            with self._wake:
                if not self._ready:
                    self._wake.wait(seconds)

    def __aiter__(self) -> AsyncIterator[Future[Any]]:
        return self

    async def __anext__(self) -> Future[Any]:
        import asyncio  # late, as in `Future`

        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        self._loops.append(entry)
        try:
            while True:
                if self._ready:
                    return self._yield_one()
                if not self._pending:
                    raise StopAsyncIteration
                seconds = self._clock.check()
                with contextlib.suppress(TimeoutError):  # the clock raises past the deadline
                    await asyncio.wait_for(event.wait(), seconds)
                event.clear()
        finally:
            self._loops.remove(entry)

    def _yield_one(self) -> Future[Any]:
        future = self._ready.popleft()
        self._pending.discard(future)
        return future

    def _take(self, future: Future[Any]) -> None:
        with self._wake:
            self._ready.append(future)
            self._wake.notify()
        for loop, event in list(self._loops):
            with contextlib.suppress(RuntimeError):  # that loop is closed
                loop.call_soon_threadsafe(event.set)
