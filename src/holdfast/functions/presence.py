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
from typing import TYPE_CHECKING, Protocol

from holdfast.errors import HoldfastError
from holdfast.functions.connection import CONNECTION

if TYPE_CHECKING:
    from holdfast.client.synchronous import Client

    OpenedSet = tuple[Client, str, int]

SAY_SECONDS = 20.0
"""The time between two reports. The controller closes a set after several times as long."""


class OpenCalls(Protocol):
    """A set that may get more calls."""

    def find_open(self) -> OpenedSet | None:
        """Return the client that opened the set, the set's id and its number of calls; None where
        it is closed, or not made yet."""

    def let_go(self) -> None:
        """Close the set, because the call that opened it has ended (SETS-1)."""


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
            self.report_clients()

    def report_clients(self) -> None:
        """Report once that the clients of the open sets live. A set of a call that ended is let
        go."""
        with self._lock:
            sets = list(self._sets)
        for opened in sets:
            try:
                self._report(opened)
            except HoldfastError:
                continue  # the next report makes up for this one

    def _report(self, opened: OpenCalls) -> None:
        if (found := opened.find_open()) is None:
            return
        client, set_id, count = found
        if client is CONNECTION.client:
            client.append_calls(set_id, count, [])
        else:
            opened.let_go()


PRESENCE = Presence()
