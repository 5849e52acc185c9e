"""Submission of single calls: the calls of one function go into one call set, which stays open
while the process submits, so that the ends of many are asked for at once.

SETS-1  An executor outlives the call sets that it runs calls of. A set that one of these calls
        opened is appended to, reported and closed only through the client of that call, because
        each client acts for one call set. It is let go when a call of another set begins.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from holdfast.client.methods.calls import make_set_id
from holdfast.core.calls.values import FunctionSpec
from holdfast.errors import Conflict, HoldfastError, NotFound
from holdfast.functions.connection import CONNECTION
from holdfast.functions.presence import PRESENCE

if TYPE_CHECKING:
    from holdfast.client.synchronous import Client
    from holdfast.functions.presence import OpenedSet

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
        self._client: Client | None = None  # through which the set was opened
        _OPEN.add(self)

    def submit(self, text: str) -> tuple[str, int]:
        """Submit one call; return its set and its index."""
        with self._lock:
            client = CONNECTION.client
            self._turn_over(client)
            if self._id:
                try:
                    return self._append(client, text)
                except (Conflict, NotFound):
                    self._id = ""  # cancelled, closed from elsewhere, or of another controller
            set_id = make_set_id()
            client.create_call_set(self._spec, [text], set_id=set_id, singles=True)
            self._id, self._count, self._pid = set_id, 1, os.getpid()
            self._client = client
            self._used_at = time.monotonic()
            PRESENCE.add(self)
            return set_id, 0

    def find_open(self) -> OpenedSet | None:
        """Return the open set, its number of calls, and the client that opened it."""
        if self._client is None or not self._id or self._pid != os.getpid():
            return None
        return self._client, self._id, self._count

    def _append(self, client: Client, text: str) -> tuple[str, int]:
        client.append_calls(self._id, self._count, [text])
        self._count += 1
        self._used_at = time.monotonic()
        return self._id, self._count - 1

    def _turn_over(self, client: Client) -> None:
        idle_seconds = time.monotonic() - self._used_at
        if self._pid != os.getpid():
            self._id = ""  # the parent of a fork goes on with it
        elif client is not self._client:
            self._close_quietly()
        elif self._count >= MAX_CALLS or idle_seconds > MAX_IDLE_SECONDS:
            self._close()

    def _close(self) -> None:
        if (opened := self.find_open()) is not None:
            self._id, self._client = "", None
            client, set_id, count = opened
            client.append_calls(set_id, count, [], count=count)

    def _close_quietly(self) -> None:
        """Close the set. The controller closes a set that an error leaves open, or a client that was
        closed before (PRESENT-1)."""
        with contextlib.suppress(HoldfastError, RuntimeError):
            self._close()

    def close(self) -> None:
        """Close the set, because no more calls come."""
        with self._lock:
            self._close_quietly()

    def let_go(self) -> None:
        """Close the set, unless the client that opened it is the client of the running call
        (SETS-1)."""
        with self._lock:
            if self._client is not CONNECTION.client:
                self._close_quietly()


_OPEN: weakref.WeakSet[OpenSet] = weakref.WeakSet()


@atexit.register
def close_all() -> None:
    """Close the sets of this process."""
    for opened in list(_OPEN):
        opened.close()
