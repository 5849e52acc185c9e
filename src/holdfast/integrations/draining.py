"""A stop that waits for the end of a step: a flag that SIGTERM sets, and the end that it asked for.

`holdfast.on_drain` runs its functions between any two instructions. A library that owns the
training loop cannot save its state there, because a step may be half done. So SIGTERM only sets a
flag, the library saves at the end of the step, and then the process ends by the signal, because an
exit with 0 would count as finished work.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from holdfast.work.forks import spare_children

TYPE_CHECKING = False  # as in `work.beats`
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any


class DrainFlag:
    """Whether this attempt was told to stop. Outside Holdfast, and in threads other than the main
    one, the flag is never set, because Python handles signals only in the main thread."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None
        self._pid = 0

    def watch(self) -> None:
        """Let SIGTERM set the flag. A repeat changes nothing; a handler set meanwhile is kept and
        called at the end."""
        if not os.environ.get("HOLDFAST_TASK"):
            return
        if threading.current_thread() is not threading.main_thread():
            return
        now = signal.getsignal(signal.SIGTERM)
        if now == self._take and self._pid == os.getpid():
            return
        if not self._pid:
            spare_children(signal.SIGTERM, self._take, lambda: self._before)
        self._before, self._pid = now, os.getpid()
        signal.signal(signal.SIGTERM, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # in a child, called by a handler that came after it
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.requested = True

    def end(self) -> None:
        """End the process as the signal would have, after an earlier handler of the user's own."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # a stream of the user's own
                pass
        signal.signal(signal.SIGTERM, self._before if callable(self._before) else signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(143)  # a container's first process: the kernel spares it the signal
