"""The sentence of a job that makes room for a more important one, written and read in one place.

Both sides of a preemption explain it by this sentence: it is the drain's reason, and so in the
database and in the victim's attempt, where whoever asks for the winner finds who made room.
"""

from __future__ import annotations

import re

_SENTENCE = re.compile(r"preempted by job (\S+) of priority (\d+)")


def say_preempted(winner: str, priority: int, own_priority: int) -> str:
    """Why a job of `own_priority` is stopped."""
    return f"preempted by job {winner} of priority {priority} (this one has {own_priority})"


def find_winner(reason: str | None) -> tuple[str, int] | None:
    """The id and priority of the job that took the place, where `reason` is such a sentence or has
    one in it."""
    found = _SENTENCE.search(reason or "")
    return None if found is None else (found[1], int(found[2]))
