"""The sentences about a job that makes room for another, written and read in one place.

Such a sentence is the reason of the victim's drain. `why` reads it from the victim's attempt to
explain both jobs.
"""

import re

import msgspec

from holdfast.core.placement.unsaved import UnsavedWork

_PREEMPTED = re.compile(r"preempted by job (\S+) of priority (\d+)")
_RECLAIMED = re.compile(
    r"it gives back what project (\S+) borrowed, to job (\S+) of project (\S+),"
)


_WEIGHED = "; it is stopped because it loses least: "


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """The job that takes the place: by its priority, or because its project asks for its share."""

    job_id: str
    priority: int | None = None
    project: str | None = None


def say_preempted(
    winner: str, priority: int, own_priority: int, loss: UnsavedWork | None = None
) -> str:
    """Return why a job of `own_priority` is stopped for the job `winner`."""
    by = f"preempted by job {winner} of priority {priority} (this one has {own_priority})"
    return f"{by}{_say_weighed(loss)}"


def say_reclaimed(winner: str, project: str, borrower: str, loss: UnsavedWork | None = None) -> str:
    """Return why a job of the project `borrower` is stopped for the job `winner`."""
    back = f"it gives back what project {borrower} borrowed, to job {winner} of project {project}"
    return f"{back}, which asks for its share{_say_weighed(loss)}"


def _say_weighed(loss: UnsavedWork | None) -> str:
    return "" if loss is None else f"{_WEIGHED}{say_unsaved(loss)}"


def say_unsaved(loss: UnsavedWork) -> str:
    """Return what a job loses by a stop, and how that is known (UNSAVED-1, UNSAVED-2)."""
    lost = f"{say_seconds(loss.gpu_seconds, 'GPU')}"
    if not loss.gpu_seconds:
        lost = say_seconds(loss.cpu_slot_seconds, "CPU slot")
    if loss.by == "median":
        return (
            f"about {lost}, the median of its project, because it twice did not go on from the "
            "checkpoint that it had saved"
        )
    if loss.by == "attempt":
        return (
            f"{lost} since its attempt began, because no checkpoint of it is on record since then"
        )
    step = "" if loss.step is None else f" at step {loss.step}"
    return f"{lost} since its checkpoint{step}"


def say_seconds(seconds: float, unit: str) -> str:
    """Return an amount of work, as "3 GPU-minutes"."""
    for size, name in ((3600.0, "hour"), (60.0, "minute")):
        if seconds >= size:
            count = f"{seconds / size:.3g}"
            return f"{count} {unit}-{name}{'' if count == '1' else 's'}"
    count = f"{seconds:.0f}"
    return f"{count} {unit}-second{'' if count == '1' else 's'}"


def find_weighed(reason: str | None) -> str:
    """Return what the job loses, as the reason of its drain says; "" where it says nothing."""
    return (reason or "").partition(_WEIGHED)[2]


def find_winner(reason: str | None) -> Winner | None:
    """Return the job that took the place, as `reason` says, or None."""
    found = _PREEMPTED.search(reason or "")
    if found is not None:
        return Winner(job_id=found[1], priority=int(found[2]))
    found = _RECLAIMED.search(reason or "")
    return None if found is None else Winner(job_id=found[2], project=found[3])
