"""The moves of an array's members: released when their turn comes (ARRAY-1), cancelled together."""

from typing import Any

from holdfast.core.arrays.arrays import IN_LINE, say_indices
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.causes import Cause
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import Conflict
from holdfast.moves.dependencies import cancel_waiting, release_waiting
from holdfast.moves.jobs import requests
from holdfast.moves.jobs.moves import Moves
from holdfast.moves.rows import JobRow
from holdfast.moves.values import NewArray

TURN = "its turn in its array has come"


def say_turn(name: str, at_once: int | None) -> str:
    """Return the sentence that tells of a member that waits in line."""
    return f"waits for its turn: array {name} runs at most {at_once} at once"


def refuse_retry(array_id: str) -> Conflict:
    """Return the error for a retry of an array that is being cancelled."""
    return Conflict(f"array {array_id} is being cancelled; retry it when that is over")


def is_in_line(job: JobRow) -> bool:
    """Return whether the job waits for its turn in its array."""
    return job.state is JobState.WAITING and job.wait_cause == IN_LINE


def release_in_line(m: Moves) -> int:
    """Release the loaded members that wait in line still; return how many."""
    found = [job for job in m.jobs.values() if is_in_line(job)]
    for job in found:
        release_waiting(m, job, TURN)
    return len(found)


def cancel_members(m: Moves, reason: str, cause: Cause, *, hard: bool) -> None:
    """Cancel the loaded members. cause: DEPENDENCY where their array waits for a job that ended
    otherwise; members in line get this cause, others are cancelled as by a user."""
    for job in m.jobs.values():
        if cause is Cause.DEPENDENCY and is_in_line(job):
            cancel_waiting(m, job, reason)
        else:
            requests.cancel(m, job, reason, hard=hard)


def refuse_array(before: ArrayRecord, new: NewArray) -> Conflict:
    """Return the error for a key or an id that names another array."""

    def shape(spec: JobSpec, indices: str, at_once: int | None) -> dict[str, Any]:
        return {"job": spec, "array": indices, "at_once": at_once}

    asked = shape(new.spec, say_indices([m.index for m in new.members]), new.at_once)
    kept = shape(before.spec, before.indices, before.at_once)
    key = None if before.id == new.id else new.spec.idempotency_key
    otherwise = "sweep (its values) or secrets"
    return requests.refuse_mismatch(before.id, kept, asked, key, what="array", otherwise=otherwise)
