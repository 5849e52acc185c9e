"""`on_drain`: a function of the user's that runs when the attempt is stopped, before it ends."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in `beats`
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeVar

    F = TypeVar("F", bound=Callable[[], Any])


class DrainHook:
    """SIGTERM's handler: it calls each function once, then the earlier handler, then lets the
    signal end the process."""

    def __init__(self) -> None:
        import signal

        from holdfast.work.forks import spare_children
        from holdfast.work.last_words import LastWords

        self._signal = signal
        self._last_words = LastWords
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
        with self._last_words():
            for function in self._functions:
                try:
                    function()
                except Exception:
                    import traceback

                    traceback.print_exc()
                except BaseException as exit_:  # it decides the exit, after the others have run
                    leaving = leaving or exit_
        if leaving is not None:
            raise leaving
        self._go(number, frame)

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


_hook: DrainHook | None = None


def on_drain(function: F) -> F:
    """Run `function` once when this attempt is told to stop (preempted, cancelled, its host
    drained), then end.

    It has the job's grace (15 s by default) to save what the next attempt needs. It runs in the
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
