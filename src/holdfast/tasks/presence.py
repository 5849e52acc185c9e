"""Reports to the controller, every few seconds, that this process lives, because it is the client
of its open call sets.

PRESENT-1  A set whose client is silent for long is closed, because a program that was killed
           reports nothing. A thread reports for the sets that will have more calls, however slowly
           these come.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Protocol

from holdfast.errors import HoldfastError
from holdfast.tasks.connection import CONNECTION

SAY_SECONDS = 20.0
"""The time between two reports. The controller closes a set after several times as long."""


class OpenCalls(Protocol):
    """A set that may get more calls."""

    def find_open(self) -> tuple[str, int] | None:
        """Return the set's id and its number of calls; None where it is closed, or not made yet."""


class Presence:
    """The open sets of this process, and the thread that reports for them. The thread begins with
    the first set, and anew in the child of a fork."""

    def __init__(self) -> None:
        self._sets: weakref.WeakSet[OpenCalls] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._pid = 0

    def add(self, opened: OpenCalls) -> None:
        """Report for a set from now on, as long as it is open and in use."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._sets = os.getpid(), weakref.WeakSet()
                threading.Thread(target=self._run, name="holdfast-sets", daemon=True).start()
            self._sets.add(opened)

    def _run(self) -> None:
        pause = threading.Event()
        while not pause.wait(SAY_SECONDS):
            self.say()

    def say(self) -> None:
        """Report once that the clients of the open sets live."""
        with self._lock:
            found = [opened.find_open() for opened in self._sets]
        for set_id, count in filter(None, found):
            try:
                CONNECTION.client.append_calls(set_id, count, [])
            except HoldfastError:
                continue  # the next report makes up for this one


PRESENCE = Presence()
