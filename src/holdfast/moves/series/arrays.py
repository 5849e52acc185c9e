"""The moves of an array's members: released when their turn comes (ARRAY-1), cancelled together."""

from holdfast.core.causes import Cause
from holdfast.core.series.arrays import IN_LINE
from holdfast.core.states import JobState
from holdfast.errors import Conflict
from holdfast.moves import requests
from holdfast.moves.moves import Moves
from holdfast.moves.rows import JobRow
from holdfast.moves.series.dependencies import cancel_waiting, release_waiting

TURN = "its turn in its array has come"


def say_turn(name: str, at_once: int | None) -> str:
    """Return the sentence of a member that waits in line."""
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
    """Cancel the loaded members; those that wait in line for what cannot come, of that cause."""
    for job in m.jobs.values():
        if cause is Cause.DEPENDENCY and is_in_line(job):
            cancel_waiting(m, job, reason)
        else:
            requests.cancel(m, job, reason, hard=hard)
