"""What a forked child of the script must not keep: it is a copy of the context without the thread
that turns it.

FORK-1  The child of a script ends nothing and says nothing in its name. It keeps neither the lock
        of the state folder nor a
        connection: held by a worker that outlives the script, they would keep its successor out and
        its managers waiting.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections.abc import Collection
from typing import Protocol


class Disownable(Protocol):
    """A context, as far as a fork goes."""

    def disown(self) -> None:
        """Be the parent's alone."""


_open: weakref.WeakSet[Disownable] = weakref.WeakSet()


def watch_forks(context: Disownable) -> None:
    """Have `disown` called in every child that is forked while the context lives."""
    _open.add(context)


def _leave_to_parent() -> None:
    for context in list(_open):
        context.disown()
    _open.clear()


def close_ports(ports: Collection[int]) -> None:
    """Close every TCP socket of this process with such a local port: those that listen and those
    that were taken."""
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
