"""Futures that any thread may wait for and any event loop may await, and the two ways to wait for
many.

A future is settled by the bus's thread. What is put on it by this library runs there, so it must be
short; callbacks of the script run in a thread of their own (`Callbacks`), so that a slow one never
holds up a heartbeat.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Iterable, Iterator
from concurrent.futures import ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION, CancelledError
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

logger = logging.getLogger("holdfast.supervisor")

T = TypeVar("T")
# One lock for all futures: it is held for a few instructions, and a lock each would cost more to
# make than to share.
_lock = threading.Lock()
_PENDING, _DONE, _FAILED, _CANCELLED = range(4)
LOG_SECONDS = 10.0


class Callbacks:
    """One thread that runs the script's callbacks, in order.

    `begin` starts it, and belongs where somebody asks to be called: a Python that is ending may
    refuse to start a thread (3.12 does, while it runs what was registered at exit), and that is
    when the last futures are told.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Any], Any], Any]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread, if it does not run yet. RuntimeError where Python starts none any
        more."""
        with self._wake:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-callbacks", daemon=True)
                thread.start()
                self._thread = thread

    def run_soon(self, function: Callable[[Any], Any], argument: Any) -> None:
        """Queue one call. Never blocks and never raises: the bus's thread calls it."""
        with self._wake:
            self._waiting.append((function, argument))
            self._wake.notify()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._waiting:
                    self._wake.wait()
                function, argument = self._waiting.popleft()
            try:
                function(argument)
            except Exception:
                logger.exception("a callback raised")
            del function, argument


_callbacks = Callbacks()


def run_soon(function: Callable[[Any], Any], argument: Any) -> None:
    """Have it called in the thread of callbacks. RuntimeError where Python starts none any more."""
    _callbacks.begin()
    _callbacks.run_soon(function, argument)


class Source(Protocol):
    """Where a future's value comes from, if that is worth something to others."""

    def cancel(self, future: Future[Any]) -> None:
        """Nobody waits for it any more."""

    def give_back(self, value: Any, turn: int = 0) -> None:
        """It came when whoever awaited it had just stopped waiting. turn: its place among others
        that go back."""


# Futures of a source that somebody listens to. All others are the script's alone: a source forgets
# those it has dropped.
_listened: set[Future[Any]] = set()


class Future(Generic[T]):
    """A value that comes later.

    `about` says what it is and `whom` on whose part, for the lines that say what is being waited
    for. `shared`: everybody who asks gets this same one (a returncode), so nobody may cancel it for
    the others.
    """

    __slots__ = ("__weakref__", "_hooks", "_shared", "_source", "_state", "_value", "about", "whom")

    def __init__(
        self,
        about: str = "",
        whom: Any = None,
        *,
        source: Source | None = None,
        shared: bool = False,
    ) -> None:
        self._shared = shared
        self.about = about
        self.whom = whom
        self._state = _PENDING
        self._value: Any = None
        self._hooks: list[Callable[[Future[T]], Any]] | None = None
        self._source = source

    def __repr__(self) -> str:
        word = ("pending", "done", "failed", "cancelled")[self._state]
        return f"<Future {self.describe() or '?'}: {word}>"

    def describe(self) -> str:
        """What is awaited, of whom."""
        return f"{self.about} of {self.whom}" if self.whom is not None else self.about

    # ---- for whoever waits

    def done(self) -> bool:
        """True once there is a result, an exception, or it was cancelled."""
        return self._state != _PENDING

    def cancelled(self) -> bool:
        """True if `cancel` came first."""
        return self._state == _CANCELLED

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value.

        Raises:
            TimeoutError: it did not come within `timeout` seconds.
            CancelledError: the future was cancelled.
            HostLost, ProcessFailedToStart, ProcessEnded: what happened instead.
        """
        self._wait(timeout)
        return self._claim()

    def _claim(self) -> T:
        if self._state == _DONE:
            value: T = self._value
            return value
        if self._state == _CANCELLED:
            raise CancelledError
        error: BaseException = self._value
        raise error.with_traceback(None)  # else it grows with everybody who raises it

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait; return what went wrong, or None. Raises as `result` does for a timeout and a
        cancel."""
        self._wait(timeout)
        if self._state == _CANCELLED:
            raise CancelledError
        error: BaseException | None = self._value if self._state == _FAILED else None
        return error

    def add_done_callback(self, function: Callable[[Future[T]], Any]) -> None:
        """Call `function(self)` once it is done: in the library's callback thread, in order. Errors
        are logged."""
        _callbacks.begin()
        self.add_hook(lambda future: _callbacks.run_soon(function, future))

    def cancel(self) -> bool:
        """Stop waiting for it. What was asked for is not undone.

        False when it was done already, and for what others may be waiting for too: pid, returncode,
        hostname, the loss.
        """
        if self._shared:
            return False
        hooks = self._settle(_CANCELLED, None)
        if hooks is None:
            return False
        if self._source is not None:
            self._source.cancel(self)
        for hook in hooks:
            hook(self)
        return True

    def __await__(self) -> Generator[Any, None, T]:
        waiter = self._as_asyncio()
        try:
            yield from waiter.__await__()
        except GeneratorExit:
            self._abandon()
            raise
        except BaseException:
            # Also where it came in the last instant: whoever awaits a message and is cancelled must
            # not swallow it.
            self._stop_waiting()
            raise
        return self._claim()

    def _abandon(self) -> None:
        """The coroutine that awaited it was closed, maybe by the garbage collector: whoever that
        was may have any lock."""
        with contextlib.suppress(RuntimeError):  # Python is ending and starts no thread any more
            run_soon(Future._stop_waiting, self)

    def _stop_waiting(self) -> None:
        if not self.cancel():
            self._give_back()

    def _give_back(self) -> None:
        """Nobody has taken the value (`MessageFuture`)."""

    def _has_value(self) -> bool:
        return self._state == _DONE

    def _withdraw(self) -> T:
        value: T = self._value
        self._value, self._state = None, _CANCELLED
        return value

    def _as_asyncio(self) -> asyncio.Future[T]:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[T] = loop.create_future()

        def pass_on() -> None:
            if waiter.done():
                return
            if self._state == _DONE:
                waiter.set_result(self._value)
            elif self._state == _FAILED:
                waiter.set_exception(self._value)
            else:
                waiter.cancel()

        def hook(_: Future[T]) -> None:
            try:
                loop.call_soon_threadsafe(pass_on)
            except RuntimeError:
                pass  # the loop is closed: nobody waits there any more

        def drop(found: asyncio.Future[T]) -> None:
            if found.cancelled() and not self.cancel():
                self.remove_hook(hook)
                self._give_back()

        waiter.add_done_callback(drop)
        self.add_hook(hook)
        return waiter

    # ---- for whoever settles it

    def set_result(self, value: T) -> bool:
        """Settle it. False when it was done already (cancelled)."""
        hooks = self._settle(_DONE, value)
        if hooks is None:
            return False
        for hook in hooks:
            hook(self)
        return True

    def set_exception(self, error: BaseException) -> bool:
        """Settle it with what went wrong. False when it was done already."""
        hooks = self._settle(_FAILED, error)
        if hooks is None:
            return False
        for hook in hooks:
            hook(self)
        return True

    def add_hook(self, hook: Callable[[Future[T]], Any]) -> None:
        """Call `hook(self)` when it is done, in whichever thread settles it: short, and never
        raising."""
        with _lock:
            if self._state == _PENDING:
                if self._source is not None:
                    _listened.add(self)
                if self._hooks is None:
                    self._hooks = [hook]
                else:
                    self._hooks.append(hook)
                return
        hook(self)

    def remove_hook(self, hook: Callable[[Future[T]], Any]) -> None:
        """Take a hook back, if it has not run."""
        with _lock:
            if self._hooks is not None and hook in self._hooks:
                self._hooks.remove(hook)
                if not self._hooks:
                    _listened.discard(self)

    def _settle(
        self, state: int, value: Any
    ) -> list[Callable[[Future[T]], Any]] | tuple[()] | None:
        with _lock:
            if self._state != _PENDING:
                return None
            self._value = value
            self._state = state
            hooks, self._hooks = self._hooks, None
            if self._source is not None:
                _listened.discard(self)
        return hooks or ()

    def _wait(self, timeout: float | None) -> None:
        if self._state != _PENDING:
            return
        ready = threading.Event()

        def hook(_: Future[T]) -> None:
            ready.set()

        self.add_hook(hook)
        if not ready.wait(timeout) and self._state == _PENDING:
            self.remove_hook(hook)
            raise TimeoutError(f"{self.describe() or 'a result'} did not come within {timeout:g} s")


class Waited(NamedTuple):
    """What `wait` found."""

    done: set[Future[Any]]
    not_done: set[Future[Any]]


def wait(
    futures: Iterable[Future[Any]],
    timeout: float | None = None,
    return_when: str = ALL_COMPLETED,
    log_interval: float | None = LOG_SECONDS,
) -> Waited:
    """Wait for many; after `timeout` seconds return what is done so far and what is not.

    return_when: ALL_COMPLETED, FIRST_COMPLETED or FIRST_EXCEPTION.
    """
    if return_when not in (ALL_COMPLETED, FIRST_COMPLETED, FIRST_EXCEPTION):
        raise ValueError(
            f"return_when={return_when!r} is none of ALL_COMPLETED, FIRST_COMPLETED, "
            "FIRST_EXCEPTION"
        )
    all_futures = set(futures)
    stream = as_completed(all_futures, timeout, log_interval)
    done: set[Future[Any]] = set()
    try:
        for future in stream:
            done.add(future)
            if return_when == FIRST_COMPLETED or (
                return_when == FIRST_EXCEPTION and future._state == _FAILED
            ):
                break
    except TimeoutError:
        pass  # the partial result is the result
    finally:
        stream.close()
    done |= {future for future in all_futures if future.done()}
    return Waited(done, all_futures - done)


class as_completed:
    """Iterate over futures as they are done; `add` takes more on the way. Also `async for`.

    Raises TimeoutError from the iteration when `timeout` seconds from the start have passed and
    some are not done. While it waits it logs, every `log_interval` seconds (None: never), what for
    and on whom.
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
        self._began = time.monotonic()
        self._deadline = None if timeout is None else self._began + timeout
        self._timeout = timeout
        self._log_interval = log_interval
        self._log_at = self._began + log_interval if log_interval is not None else None
        self._loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
        for future in futures:
            self.add(future)

    def add(self, future: Future[Any]) -> None:
        """Wait for this one too. A future that is being waited for already is not yielded twice."""
        if future in self._pending:
            return
        self._pending.add(future)
        future.add_hook(self._take)

    def close(self) -> None:
        """Wait for nothing more."""
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
                future = self._ready.popleft()
                self._pending.discard(future)
                return future
            if not self._pending:
                raise StopIteration
            seconds = (
                self._check_time()
            )  # it logs, which may take long: not while the bus's thread may want the lock
            with self._wake:
                if not self._ready:
                    self._wake.wait(seconds)

    def __aiter__(self) -> AsyncIterator[Future[Any]]:
        return self

    async def __anext__(self) -> Future[Any]:
        event = asyncio.Event()
        entry = (asyncio.get_running_loop(), event)
        self._loops.append(entry)
        try:
            while True:
                if self._ready:
                    future = self._ready.popleft()
                    self._pending.discard(future)
                    return future
                if not self._pending:
                    raise StopAsyncIteration
                seconds = self._check_time()
                try:
                    await asyncio.wait_for(event.wait(), seconds)
                except TimeoutError:
                    pass  # the next look at the time says what that means
                event.clear()
        finally:
            self._loops.remove(entry)

    def _take(self, future: Future[Any]) -> None:
        with self._wake:
            self._ready.append(future)
            self._wake.notify()
        for loop, event in list(self._loops):
            try:
                loop.call_soon_threadsafe(event.set)
            except RuntimeError:
                pass  # that loop is closed

    def _check_time(self) -> float | None:
        """How long to sleep at most. Raises TimeoutError past the deadline; logs when that is
        due."""
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
            named = ", ".join(sorted(whom)[:5])
            parts.append(
                f"{about} of {named}" + (f" and {len(whom) - 5} more" if len(whom) > 5 else "")
            )
        return f"{len(left)} not done: " + ("; ".join(parts) or "none")


def _begin_anew() -> None:
    """In a forked child, where no other thread is: one may have held the lock, another was to run
    the callbacks."""
    global _lock, _callbacks
    _lock = threading.Lock()
    _callbacks = Callbacks()


os.register_at_fork(after_in_child=_begin_anew)
