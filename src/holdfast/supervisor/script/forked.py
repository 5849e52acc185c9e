"""Handling of forked children of the script, which have a copy of the run without the bus's thread.

FORK-1  A child of a script ends nothing and sends nothing in the script's name. It keeps neither
        the lock of the state folder nor a connection: held by a worker that outlives the script,
        they would lock the next script out and keep managers waiting.
"""

import contextlib
import os
import socket
import weakref
from collections.abc import Collection
from typing import Protocol


class Disownable(Protocol):
    """A run that a forked child can leave to its parent."""

    def disown(self) -> None:
        """Leave the run to the parent."""


_open: weakref.WeakSet[Disownable] = weakref.WeakSet()


def watch_forks(run: Disownable) -> None:
    """Have `disown` called in every child that is forked while the run is open."""
    _open.add(run)


def _leave_to_parent() -> None:
    for run in list(_open):
        run.disown()
    _open.clear()


def close_ports(ports: Collection[int]) -> None:
    """Close every TCP socket of this process with one of these local ports, listening or
    connected."""
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{fd}").startswith("socket:"):
                continue
            talk = socket.socket(fileno=fd)
            try:
                found = (
                    talk.getsockname() if talk.family in (socket.AF_INET, socket.AF_INET6) else ()
                )
            finally:
                talk.detach()
            if found and found[1] in ports:
                os.close(fd)


os.register_at_fork(after_in_child=_leave_to_parent)
