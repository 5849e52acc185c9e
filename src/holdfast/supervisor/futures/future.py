"""Futures that any thread may wait for and any event loop may await.

The bus's thread settles a future: it sets the value or the error. The library's own hooks run
there, so they must be short; the script's callbacks run in a thread of their own (`Callbacks`), so
that a slow one never holds up a heartbeat.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio

logger = logging.getLogger("holdfast.supervisor")

T = TypeVar("T")
# One lock for all futures: it is held for a few instructions, and a lock for each future would cost
# more than sharing one.
settle_lock = threading.Lock()
_PENDING, _DONE, _FAILED, _CANCELLED = range(4)


def renew_after_fork(names: dict[str, Any], **makers: Callable[[], Any]) -> None:
    """Make these globals of a module anew in every forked child, which has none of its parent's
    other threads."""

    def renew() -> None:
        names.update((name, make()) for name, make in makers.items())

    os.register_at_fork(after_in_child=renew)


class Callbacks:
    """One thread that runs the script's callbacks, in order.

    Call `begin` where a callback is registered: Python may refuse to start a thread while it exits
    (3.12 does), and the last futures are settled just then.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[Callable[[Any], Any], Any]] = deque()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread if it does not run yet. Raises RuntimeError while Python is ending."""
        with self._wake:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="holdfast-callbacks", daemon=True)
                thread.start()
                self._thread = thread

    def run_soon(self, function: Callable[[Any], Any], argument: Any) -> None:
        """Queue one call of `function`. Never blocks and never raises, because the bus's thread
        calls this."""
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
    """Call `function` in the callbacks' thread. Raises RuntimeError while Python is ending."""
    _callbacks.begin()
    _callbacks.run_soon(function, argument)


class Source(Protocol):
    """The place that a future's value comes from, where it can take the value back."""

    def cancel(self, future: Future[Any]) -> None:
        """Forget the wait of this future."""

    def give_back(self, value: Any, turn: int = 0) -> None:
        """Take back a value whose waiter has stopped. turn: the value's place in the order of
        arrival."""


# Pending futures that have both a source and a hook. The set keeps them alive, because a source
# holds its futures weakly and forgets those that the script has dropped.
_listened: set[Future[Any]] = set()


class Future(Generic[T]):
    """A value that comes later.

    `about` names the value and `whom` its host or process, in logs of pending futures. `shared`:
    all callers get this same future (a returncode), so none may cancel it for the others.
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
        """Name the value, and its host or process."""
        return f"{self.about} of {self.whom}" if self.whom is not None else self.about

    # ---- for the script

    def done(self) -> bool:
        """Return True once the future has a result or an exception, or was cancelled."""
        return self._state != _PENDING

    def cancelled(self) -> bool:
        """Return True if `cancel` came first."""
        return self._state == _CANCELLED

    def failed(self) -> bool:
        """Return True once the future is done with an exception."""
        return self._state == _FAILED

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value.

        Raises:
            TimeoutError: the value did not come within `timeout` seconds.
            CancelledError: the future was cancelled.
            HostLost, ProcessFailedToStart, ProcessEnded: the event because of which no value will
            come.
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
        raise error.with_traceback(None)  # else its traceback would grow with every raise

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the future; return its error, or None. Timeout and cancel raise as in
        `result`."""
        self._wait(timeout)
        if self._state == _CANCELLED:
            raise CancelledError
        error: BaseException | None = self._value if self._state == _FAILED else None
        return error

    def add_done_callback(self, function: Callable[[Future[T]], Any]) -> None:
        """Call `function(self)` when the future is done: in the callback thread, in order, with
        errors logged."""
        _callbacks.begin()
        self.add_hook(lambda future: _callbacks.run_soon(function, future))

    def cancel(self) -> bool:
        """Stop waiting for the value. The action that was asked for goes on.

        Returns False where the future was done already, and for futures that others may wait for
        too: pid, returncode, hostname, the loss.
        """
        return not self._shared and self._settle(_CANCELLED, None)

    def __await__(self) -> Generator[Any, None, T]:
        waiter = self._as_asyncio()
        try:
            yield from waiter.__await__()
        except GeneratorExit:
            self._abandon()
            raise
        except BaseException:
            # A value that came in the last instant goes back: a cancelled `await` must not swallow
            # a message.
            self.stop_waiting()
            raise
        return self._claim()

    def _abandon(self) -> None:
        """Stop waiting, in another thread, because the garbage collector may close the coroutine in
        a thread that already holds a lock."""
        with contextlib.suppress(RuntimeError):  # Python is ending and starts no thread any more
            run_soon(Future.stop_waiting, self)

    def _give_back(self) -> None:
        """Return a value that no caller took to its source (`MessageFuture`)."""

    def _has_value(self) -> bool:
        return self._state == _DONE

    def _withdraw(self) -> T:
        value: T = self._value
        self._value, self._state = None, _CANCELLED
        return value

    def _as_asyncio(self) -> asyncio.Future[T]:
        import asyncio  # late, because a process of a run has a future and seldom a loop

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
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its waits with it
                loop.call_soon_threadsafe(pass_on)

        def drop(found: asyncio.Future[T]) -> None:
            if found.cancelled() and not self.cancel():
                self.remove_hook(hook)
                self._give_back()

        waiter.add_done_callback(drop)
        self.add_hook(hook)
        return waiter

    # ---- for the library, which settles it

    def set_result(self, value: T) -> bool:
        """Set the future's result. Returns False where the future was done already (cancelled)."""
        return self._settle(_DONE, value)

    def set_exception(self, error: BaseException) -> bool:
        """Set the future's error. Returns False where the future was done already."""
        return self._settle(_FAILED, error)

    def stop_waiting(self) -> None:
        """Cancel the future; a value that has come already goes back to its source."""
        if not self.cancel():
            self._give_back()

    def add_hook(self, hook: Callable[[Future[T]], Any]) -> None:
        """Call `hook(self)` when the future is done, in the thread that sets its value. A hook must
        be short and never raise."""
        with settle_lock:
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
        """Remove a hook that has not run."""
        with settle_lock:
            if self._hooks is not None and hook in self._hooks:
                self._hooks.remove(hook)
                if not self._hooks:
                    _listened.discard(self)

    def wait(self, timeout: float | None) -> bool:
        """Sleep until the future is done. Returns False where it was not within `timeout`
        seconds."""
        if self._state != _PENDING:
            return True
        ready = threading.Event()

        def hook(_: Future[T]) -> None:
            ready.set()

        self.add_hook(hook)
        if not ready.wait(timeout) and self._state == _PENDING:
            self.remove_hook(hook)
            return False
        return True

    def _settle(self, state: int, value: Any) -> bool:
        with settle_lock:
            if self._state != _PENDING:
                return False
            self._value = value
            self._state = state
            hooks, self._hooks = self._hooks, None
            if self._source is not None:
                _listened.discard(self)
        if state == _CANCELLED and self._source is not None:
            self._source.cancel(self)
        if hooks is not None:
            for hook in hooks:
                hook(self)
        return True

    def _wait(self, timeout: float | None) -> None:
        if not self.wait(timeout):
            raise TimeoutError(f"{self.describe() or 'a result'} did not come within {timeout:g} s")


renew_after_fork(globals(), settle_lock=threading.Lock, _callbacks=Callbacks)
