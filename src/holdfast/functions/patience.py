"""Warnings to a program that waits for a call which cannot start."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from holdfast.errors import Conflict, HoldfastError
from holdfast.functions.connection import CONNECTION
from holdfast.functions.running import context

if TYPE_CHECKING:
    from holdfast.wire.calls import CallView

PATIENCE_SECONDS = 10.0
CALL_PATIENCE_SECONDS = 2.0
"""The patience of a call that waits for another call, because a deadlock must be found soon."""
MAX_LOOK_SECONDS = 120.0
NEVER = "waits_for_itself"
"""The code of `why` for a call that cannot start before the one that waits for it has ended."""
ORDINARY = ("behind", "executor_starts", "ready", "running")
"""Codes of `why` that only ask for patience."""

_log = logging.getLogger("holdfast.functions")


class Patience:
    """Warns a waiting program of the reason why its call does not start: after `PATIENCE_SECONDS`
    without a result, and once for each reason."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._said: set[str] = set()
        self._looked_at = self._since

    def renew(self) -> None:
        """Begin the wait anew, because a result came."""
        self._since = time.monotonic()

    def look(self, set_id: str, index: int) -> None:
        """Warn if the call cannot start and the program was not warned of that yet.

        Raises:
            Conflict: the running call waits for a call that can never start meanwhile; that call is
            cancelled.
        """
        now = time.monotonic()
        if now - self._since < choose_wait_seconds() or (
            # A call's look costs the controller several reads, and thousands of calls may wait.
            context().hosted
            and now - self._looked_at < min(MAX_LOOK_SECONDS, now - self._since) / 2
        ):
            return
        self._looked_at = now
        view = _view(set_id, index)
        if view is not None and view.why and view.why[0].code == NEVER and context().hosted:
            text = f"call {set_id}.{index} can never run: {say_why(view)}"
            CONNECTION.client.cancel_calls(set_id, [index], text[:1000])
            raise Conflict(text, code="call_waits_for_itself")
        if time.monotonic() - self._since < PATIENCE_SECONDS:
            return
        if view is None or not view.why or view.why[0].code in ORDINARY:
            return
        if view.why[0].code not in self._said:
            self._said.add(view.why[0].code)
            _log.warning("call %s.%d waits: %s", set_id, index, say_why(view))


def choose_wait_seconds() -> float:
    """Return how long one request for results waits."""
    return CALL_PATIENCE_SECONDS if context().hosted else PATIENCE_SECONDS


def find_hold_up(set_id: str, index: int) -> str:
    """Return the reason that holds the call up, with its remedy; "" where it cannot be found
    out."""
    view = _view(set_id, index)
    return "" if view is None else say_why(view)


def say_why(view: CallView) -> str:
    """Write the first reason on one line, with its hint."""
    if not view.why:
        return ""
    first = view.why[0]
    return f"{first.message} ({first.hint})" if first.hint else first.message


def _view(set_id: str, index: int) -> CallView | None:
    try:
        return CONNECTION.client.call_view(set_id, index)
    except HoldfastError:
        return None
