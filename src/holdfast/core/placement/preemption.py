"""The sentences about a job that makes room for another, written and read in one place.

Such a sentence is the reason of the victim's drain. `why` reads it from the victim's attempt to
explain both jobs.
"""

import re

import msgspec

_PREEMPTED = re.compile(r"preempted by job (\S+) of priority (\d+)")
_RECLAIMED = re.compile(
    r"it gives back what project (\S+) borrowed, to job (\S+) of project (\S+),"
)


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """The job that takes the place: by its priority, or because its project asks for its share."""

    job_id: str
    priority: int | None = None
    project: str | None = None


def say_preempted(winner: str, priority: int, own_priority: int) -> str:
    """Return why a job of `own_priority` is stopped for the job `winner`."""
    return f"preempted by job {winner} of priority {priority} (this one has {own_priority})"


def say_reclaimed(winner: str, project: str, borrower: str) -> str:
    """Return why a job of the project `borrower` is stopped for the job `winner`."""
    back = f"it gives back what project {borrower} borrowed, to job {winner} of project {project}"
    return f"{back}, which asks for its share"


def find_winner(reason: str | None) -> Winner | None:
    """Return the job that took the place, as `reason` says, or None."""
    found = _PREEMPTED.search(reason or "")
    if found is not None:
        return Winner(job_id=found[1], priority=int(found[2]))
    found = _RECLAIMED.search(reason or "")
    return None if found is None else Winner(job_id=found[2], project=found[3])
