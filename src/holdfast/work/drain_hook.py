"""`on_drain`: a function of the user's that runs when the attempt is stopped, before it ends."""

from __future__ import annotations

import os
import sys
from time import monotonic

TYPE_CHECKING = False  # as in `beats`
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[[], Any])


class DrainHook:
    """SIGTERM's handler: it calls each function, then the earlier handler, then lets the signal end
    the process."""

    def __init__(self) -> None:
        import signal

        from holdfast.work.forks import spare_children
        from holdfast.work.last_words import LastWords
        from holdfast.work.save_note import SaveNote

        self._signal = signal
        self._last_words, self._save_note = LastWords, SaveNote
        self._pid = os.getpid()
        self._functions: list[Callable[[], Any]] = []
        self._running = False
        self._before: Any = signal.signal(signal.SIGTERM, self.handle)
        spare_children(signal.SIGTERM, self.handle, lambda: self._before)

    def add(self, function: Callable[[], Any]) -> None:
        """Run `function` at the drain, after those added before it."""
        self._functions.append(function)

    @property
    def is_own(self) -> bool:
        """Return False in a child that was forked after the hook was set up."""
        return os.getpid() == self._pid

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Run the functions. Python calls this in the main thread, between two of its
        instructions."""
        if not self.is_own:  # in a child, called by a handler of the user's that came after it
            self._go(number, frame)
            return
        if self._running:
            return  # a repeated signal: the running function may finish, KILL ends the grace
        self._running = True
        leaving: BaseException | None = None
        with self._last_words(), _NoNewsOfChildren(self._signal):
            note = self._save_note()
            note.write("")
            began, failed = monotonic(), ""
            for function in self._functions:
                try:
                    failed = self._call(function, began) or failed
                except BaseException as exit_:  # it decides the exit, after the others have run
                    leaving = leaving or exit_
            note.write(failed) if failed else note.remove()
        if leaving is not None:
            raise leaving
        self._go(number, frame)

    def _call(self, function: Callable[[], Any], began: float) -> str:
        """Call a function, once more where it raised and half of the grace is left. Return the
        words of the last failure, or nothing."""
        failed = ""
        for again in (False, True):
            try:
                function()
                return ""
            except Exception as error:
                import traceback

                traceback.print_exc()
                name = getattr(function, "__name__", "") or type(function).__name__
                failed = f"{name}: {type(error).__name__}: {error}"
            ran = monotonic() - began
            if again or ran > _find_left(ran):
                break
            sys.stderr.write(f"holdfast: {name} of on_drain is called once more\n")
        return failed

    def _go(self, number: int, frame: FrameType | None) -> None:
        before = self._before
        if callable(before):
            before(number, frame)  # it may raise (SystemExit, say) and so decide the exit
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # a stream of the user's own
                pass
        self._signal.signal(number, self._signal.SIG_DFL)
        os.kill(os.getpid(), number)
        if os.getpid() == 1:  # a container's first process: the kernel spares it the signal
            os._exit(128 + number)


class _NoNewsOfChildren:
    """Puts a handler of SIGCHLD aside within the block, because one that raises where a child dies
    of the same stop (a data loader's) would break the save. A handler that is set meanwhile
    stays."""

    def __init__(self, signals: Any) -> None:
        self._signals = signals

    def __enter__(self) -> None:
        self._before = self._signals.getsignal(self._signals.SIGCHLD)
        if callable(self._before):
            self._signals.signal(self._signals.SIGCHLD, _hear_nothing)

    def __exit__(self, *exception: object) -> None:
        if self._signals.getsignal(self._signals.SIGCHLD) is _hear_nothing:
            self._signals.signal(self._signals.SIGCHLD, self._before)


def _hear_nothing(number: int, frame: FrameType | None) -> None:
    """Take a signal for nothing; the signal's default would make Python warn of one that came
    just before."""


def _find_left(ran: float) -> float:
    """Return the seconds until the kill, `ran` seconds after the stop."""
    from holdfast.work.stop_word import stopping

    told = stopping(0)
    return told.seconds_left if told else float(os.environ.get("HOLDFAST_GRACE") or 15.0) - ran


_hook: DrainHook | None = None


def on_drain(function: F) -> F:
    """Run `function` when this attempt is told to stop (preempted, cancelled, its host drained, its
    time limit over), then end.

    It has the job's grace (15 s by default) to save what the next attempt needs. If it raises while
    half of that is left, it is called once more, so it may run twice; that it failed at last stands
    in the attempt's reason. A handler of SIGCHLD is put aside meanwhile. It runs in the
    main thread, so call `on_drain` there. An earlier handler of SIGTERM is called after it, and
    then the process ends as the signal ends it; a handler that is set later replaces it. Several
    functions may be given; all of them run, even where one raises or calls `sys.exit`. Their
    prints raise nothing, because the reader of the output may be gone already. Outside Holdfast
    nothing happens. May be used as a decorator.

    Raises:
        ValueError: not called in the main thread.
    """
    global _hook
    if os.environ.get("HOLDFAST_TASK"):
        if _hook is None or not _hook.is_own:
            import threading

            if threading.current_thread() is not threading.main_thread():
                why = "only there does Python take signals"
                raise ValueError(f"call holdfast.on_drain in the main thread: {why}")
            _hook = DrainHook()
        _hook.add(function)
    return function
