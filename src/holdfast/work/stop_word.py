"""`stopping`: why this attempt is told to stop, and how long it has.

The agent leaves a file in `HOLDFAST_CHECKPOINT_OUT` beside the signal: `{"why": …, "until": …}`,
where `until` is the instant of the kill in seconds of CLOCK_BOOTTIME.
"""

from __future__ import annotations

import os
import time

NAME = ".stop"
PATIENCE_SECONDS = 0.25
"""How long a look waits for the file, because the signal may come a moment before it."""


class StopWord:
    """An order to stop. why: the cause, then the sentence about it, as "preempted: preempted by
    job …". seconds_left: the time until the task is killed, as it was when this was read."""

    __slots__ = ("seconds_left", "why")

    def __init__(self, why: str, seconds_left: float) -> None:
        self.why = why
        self.seconds_left = seconds_left

    def __repr__(self) -> str:
        return f"StopWord(why={self.why!r}, seconds_left={self.seconds_left:.1f})"

    @property
    def cause(self) -> str:
        """Return the first word of `why`: "preempted", "user_cancelled", "host_drained", …"""
        return self.why.partition(":")[0]


def stopping(wait_seconds: float = PATIENCE_SECONDS) -> StopWord | None:
    """Return why this attempt is told to stop and how long it has; None where it is not told to, or
    outside Holdfast. Call it in a function given to `on_drain`, to choose what can still be saved.

    wait_seconds: how long to wait for the word, which may come a moment after the signal; 0 where
    no signal has come, to look only.
    """
    folder = os.environ.get("HOLDFAST_CHECKPOINT_OUT")
    if not folder:
        return None
    give_up_at = time.monotonic() + wait_seconds
    while True:
        found = _read(os.path.join(folder, NAME))
        if found is not None or time.monotonic() >= give_up_at:
            return found
        time.sleep(0.005)


def _read(path: str) -> StopWord | None:
    from json import loads

    try:
        with open(path, "rb") as file:
            told = loads(file.read())
        left = told["until"] - time.clock_gettime(time.CLOCK_BOOTTIME)
        return StopWord(str(told["why"]), max(0.0, left))
    except (OSError, ValueError, KeyError, TypeError):
        return None
