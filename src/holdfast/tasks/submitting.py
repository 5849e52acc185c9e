"""Submission of single calls: the calls of one function go into one call set, which stays open
while the process submits, so that the ends of many are asked for at once."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref

from holdfast.client.methods.calls import make_set_id
from holdfast.core.calls.values import FunctionSpec
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.tasks.connection import CONNECTION
from holdfast.tasks.presence import PRESENCE

MAX_CALLS = 10_000
MAX_IDLE_SECONDS = 600.0


class OpenSet:
    """The open call set of one function. A call is on record when `submit` returns."""

    def __init__(self, spec: FunctionSpec) -> None:
        self._spec = spec
        self._lock = threading.Lock()
        self._id = ""
        self._count = 0
        self._pid = 0
        self._used_at = 0.0
        _OPEN.add(self)

    def submit(self, text: str) -> tuple[str, int]:
        """Submit one call; return its set and its index."""
        with self._lock:
            self._turn_over()
            if self._id:
                try:
                    return self._append(text)
                except (Conflict, NotFound):
                    self._id = ""  # cancelled, closed from elsewhere, or of another controller
            set_id = make_set_id()
            CONNECTION.client.create_call_set(self._spec, [text], set_id=set_id, singles=True)
            self._id, self._count, self._pid = set_id, 1, os.getpid()
            self._used_at = time.monotonic()
            PRESENCE.add(self)
            return set_id, 0

    def find_open(self) -> tuple[str, int] | None:
        """Return the open set's id and its number of calls."""
        mine = self._id and self._pid == os.getpid()
        return (self._id, self._count) if mine else None

    def _append(self, text: str) -> tuple[str, int]:
        CONNECTION.client.append_calls(self._id, self._count, [text])
        self._count += 1
        self._used_at = time.monotonic()
        return self._id, self._count - 1

    def _turn_over(self) -> None:
        idle_seconds = time.monotonic() - self._used_at
        if self._pid != os.getpid():
            self._id = ""  # the parent of a fork goes on with it
        elif self._count >= MAX_CALLS or idle_seconds > MAX_IDLE_SECONDS:
            self._close()

    def _close(self) -> None:
        if self._id and self._pid == os.getpid():
            set_id, self._id = self._id, ""
            CONNECTION.client.append_calls(set_id, self._count, [], count=self._count)

    def close(self) -> None:
        """Close the set, because no more calls come. An error leaves the set open, which harms
        nothing."""
        with self._lock, contextlib.suppress(HoldfastError):
            self._close()


_OPEN: weakref.WeakSet[OpenSet] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Close the sets of this process."""
    for opened in list(_OPEN):
        opened.close()
