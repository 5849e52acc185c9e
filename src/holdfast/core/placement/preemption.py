"""The sentence of a job that makes room for a more important one, written and read in one place.

It is the drain's reason, and so in the database and in the victim's attempt, where `why` finds it
for both sides of a preemption.
"""

from __future__ import annotations

import re

_SENTENCE = re.compile(r"preempted by job (\S+) of priority (\d+)")


def say_preempted(winner: str, priority: int, own_priority: int) -> str:
    """Why a job of `own_priority` is stopped."""
    return f"preempted by job {winner} of priority {priority} (this one has {own_priority})"


def find_winner(reason: str | None) -> tuple[str, int] | None:
    """Return the id and priority of the job that took the place, as `reason` says, or None."""
    found = _SENTENCE.search(reason or "")
    return None if found is None else (found[1], int(found[2]))
