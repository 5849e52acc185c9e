"""Tell the agent, inside a job of Holdfast, that a host manager has nothing to run, because its
silence is no stall then.

IDLE-1  When the last process of a host has ended, its task enters a section that lasts until the
        next beat. So neither a host that waits for its script, nor a new group that loads before
        its first beat, is held to the beats of an earlier one.
"""

import contextlib
import socket
from collections.abc import Mapping

from holdfast.core.watchdogs.sections import IDLE_SECTION
from holdfast.process.table import TASK_VARIABLE
from holdfast.wire.beat import Beat, encode_beat

_FOREVER_SECONDS = 30 * 86_400.0  # the longest that a section may ask for


class IdleWord:
    """Reports the idle host to the agent once each time, as soon as the agent's socket accepts it.
    Outside a job it does nothing."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        task, self._path = environ.get(TASK_VARIABLE, ""), environ.get("HOLDFAST_BEAT_SOCKET", "")
        self._datagram = encode_beat(
            Beat(task=task, section=IDLE_SECTION, timeout=_FOREVER_SECONDS)
        )
        self._socket: socket.socket | None = None
        if task and self._path:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._was_busy = False
        self._unsaid = False

    def look(self, *, busy: bool) -> None:
        """Report an idle host where that is due. busy: True while a process of this host lives."""
        self._unsaid = (self._unsaid or self._was_busy) and not busy
        self._was_busy = busy
        if self._unsaid and self._socket is not None:
            with contextlib.suppress(OSError):  # full, or the agent starts again: at the next look
                self._socket.sendto(self._datagram, self._path)
                self._unsaid = False

    def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            self._socket.close()
