"""The one place through which the code of the user is entered: imports, loaders, unloaders, calls,
and the texts of their errors.

USER-1  An exception that leaves the code of the user, SystemExit and KeyboardInterrupt among them,
        is returned or raised to the caller here and ends no executor.
USER-2  The state of the process that the code of the user changed is restored before other code of
        the user is entered: the folder, the umask, handlers and masks of signals, an alarm, stdout
        and stderr, context variables, the limit of recursion. The state that an import sets up
        stays, because all calls of the app rely on it; the handlers of TERM and INT are the
        executor's in any case.
USER-3  A process that a call forked reacts to signals as it would elsewhere, and ends where it
        would return into the executor.
"""

import _signal  # type: ignore[import-not-found]  # typeshed lacks it
import contextlib
import contextvars
import faulthandler
import functools
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.functions.executor.streams import MarkedStream, mark_streams

_NUMBERS = tuple(n for n in range(1, 32) if n not in (signal.SIGKILL, signal.SIGSTOP))
_OWN = (signal.SIGTERM, signal.SIGINT)
_OUTPUTS = (1, 2)
_LONG_SECONDS = 1e-3
_CHANGERS: tuple[tuple[Any, str], ...] = (
    (os, "chdir"), (os, "fchdir"), (os, "umask"), (os, "dup2"), (os, "closerange"),
    (signal, "signal"), (signal, "alarm"), (signal, "setitimer"), (signal, "pthread_sigmask"),
    (sys, "setrecursionlimit"), (faulthandler, "dump_traceback_later"),
)  # fmt: skip
"""The functions that change the state of a process. Each is wrapped to note that it was called,
because reading that state after each call would cost more than most of Holdfast's own work for a
short call."""
_SUPPORTS = (os.supports_fd, os.supports_dir_fd, os.supports_follow_symlinks)
T = TypeVar("T")


class UserGuard:
    """Enters the code of the user, and restores the state of its process after it. Used by the main
    thread only.

    stop: called at TERM. forked: called in each process that is forked.
    """

    def __init__(self, stop: Callable[[], None], forked: Callable[[], None]) -> None:
        self.streams: tuple[MarkedStream, MarkedStream] = mark_streams()
        self._stop, self._forked_hook = stop, forked
        self._inside = self._forked = self._changed = False
        signal.signal(signal.SIGTERM, self._hear_stop)
        signal.signal(signal.SIGINT, self._hear_interrupt)
        os.register_at_fork(after_in_child=self._begin_child)
        self._outputs = [os.dup(fd) for fd in _OUTPUTS]
        self._folder = -1
        self._note_state()
        for module, name in _CHANGERS:
            setattr(module, name, self._note_calls(getattr(module, name)))

    def run(self, work: Callable[..., T], *args: Any, sets_up: bool = False) -> T:
        """Run `work(*args)` in a context of its own; return its result, or raise its exception.
        sets_up: True where `work` changes the process for good, and later calls are to find that
        change."""
        if self._inside:  # a loader within a call: its process is put in order after that
            return contextvars.copy_context().run(work, *args)
        self._inside, began = True, time.perf_counter()
        try:
            value = contextvars.copy_context().run(work, *args)
            if self._forked:
                _end_child(None)
            return value
        except BaseException as error:
            if self._forked:
                _end_child(error)
            raise
        finally:
            self._inside = False
            if sets_up:
                self._note_state()
            if self._changed or time.perf_counter() - began > _LONG_SECONDS:
                self._restore()  # after a long call in any case: C code may have changed the state
            out, err = self.streams
            same = sys.stdout is out and sys.stderr is err
            if not (same and _is_open(out) and _is_open(err)):
                self._restore_streams()

    def shield(self, whose: str, work: Callable[[], object]) -> BaseException | None:
        """Run `work`. Where it raises, print the exception with the name in `whose`, and return
        it."""
        try:
            self.run(work)
        except BaseException as error:
            with contextlib.suppress(BaseException):  # its text is code of the user, too
                self.run(_print_failure, whose, error)
            return error
        return None

    # ---- the process

    def _note_calls(self, change: Callable[..., Any]) -> Callable[..., Any]:
        """Return a wrapper of a function that also notes that it was called."""

        @functools.wraps(change)
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._changed = True
            return change(*args, **kwargs)

        for able in _SUPPORTS:
            if change in able:
                able.add(noted)
        return noted

    def _note_state(self) -> None:
        """Note the state of the process as the state in which every call begins."""
        with contextlib.suppress(OSError):  # the folder may be gone: the process stays where it is
            fd = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            if self._folder >= 0:
                os.dup2(fd, self._folder, inheritable=False)
                os.close(fd)
            else:
                self._folder = fd
        self._umask = os.umask(0o077)
        os.umask(self._umask)
        self._handlers = {number: signal.getsignal(number) for number in _NUMBERS}
        self._handlers |= {signal.SIGTERM: self._hear_stop, signal.SIGINT: self._hear_interrupt}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ()).difference(_OWN)
        self._has_alarm = any(signal.getitimer(signal.ITIMER_REAL))
        self._recursion = sys.getrecursionlimit()

    def _restore(self) -> None:
        sys.setrecursionlimit(self._recursion)  # first, because the steps below need the limit
        if not self._has_alarm:
            signal.alarm(0)
        # By `_signal`, because the enums of `signal` would cost most of what a restoration does.
        for number, handler in self._handlers.items():
            if handler is not None and _signal.getsignal(number) != handler:
                with contextlib.suppress(OSError, ValueError):
                    signal.signal(number, handler)
        _signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        faulthandler.cancel_dump_traceback_later()
        os.umask(self._umask)
        with contextlib.suppress(OSError):  # the user's code closed files that are not its own
            os.fchdir(self._folder)
            for saved, fd in zip(self._outputs, _OUTPUTS, strict=True):
                os.dup2(saved, fd)
        self._changed = False

    def _restore_streams(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # an object of the user's own
                stream.flush()
        if all(map(_is_open, self.streams)):
            sys.stdout, sys.stderr = self.streams
        else:
            self.streams = mark_streams()

    def _hear_stop(self, number: int, frame: object) -> None:
        self._stop()

    def _hear_interrupt(self, number: int, frame: object) -> None:
        if self._inside:
            raise KeyboardInterrupt

    def _begin_child(self) -> None:
        """Give a forked process the default handlers of signals, so that signals end it
        (USER-3)."""
        self._forked = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._forked_hook()


def _is_open(stream: MarkedStream) -> bool:
    try:
        return not stream.closed
    except ValueError:  # the stream was detached
        return False


def _print_failure(whose: str, error: BaseException) -> None:
    print(f"[holdfast] {whose} failed:", file=sys.stderr)
    traceback.print_exception(error)


def _end_child(error: BaseException | None) -> None:
    """End a forked process that came back from the code of the user (USER-3)."""
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            status = 1
            traceback.print_exception(error)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    finally:
        os._exit(status & 0xFF)
