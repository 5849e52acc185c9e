"""Retries that are due: queued, held back by a kill switch, or released from it.

RETRY-6  The kill switch is read in the transaction that dispatches, behind a lock that changes of
         it wait for: once a call that threw it has returned, nothing is dispatched under it. A
         retry it holds is kept under every budget, and costs nothing until the switch is lifted.
"""

from collections.abc import Collection, Mapping

from holdfast.core.causes import CHARGED_TO, Budget
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobState
from holdfast.moves.jobs.drains import hold_retry
from holdfast.moves.jobs.moves import Moves, leave_waiting
from holdfast.moves.jobs.requests import DUE
from holdfast.moves.rows import BACK_OFF, RETRIES_HELD, JobRow

SWITCH = "retries_enabled"


class Switches:
    """The kill switches for retries. One that is off in any layer is off, even if others are on."""

    def __init__(
        self,
        cluster: Mapping[str, Value],
        environment: Mapping[str, Value],
        projects_off: Collection[str],
    ) -> None:
        layers = (("cluster", cluster), ("environment", environment))
        off = [f"the {source}" for source, layer in layers if layer.get(SWITCH) is False]
        self.everywhere = off[0] if off else None
        self.projects_off = sorted(projects_off)

    def held_by(self, project: str) -> str | None:
        """Return the name of the kill switch that holds the project's retries back, or None."""
        return self.everywhere or (f"project {project}" if project in self.projects_off else None)


def dispatch_retry(m: Moves, job: JobRow) -> None:
    """Queue a retry whose back-off is over, and log it for audits."""
    due_at = job.retry_at or job.wait_until or m.now
    leave_waiting(m, job, _say(job, "its back-off is over"))
    m.log(
        "job.retry_dispatched",
        job,
        job.reason,
        retry_count=job.retries_charged,
        cause=job.cause and str(job.cause),
        due_at=due_at.isoformat(),
        waited_seconds=round(max(0.0, (m.now - due_at).total_seconds()), 3),
    )


def dispatch_at_once(m: Moves, job: JobRow, switches: Switches) -> None:
    """Queue a retry that is due already, unless a kill switch holds it; a retry that is due later
    waits for the leader's loop."""
    due = job.state is JobState.WAITING and job.wait_cause == BACK_OFF
    if due and (job.retry_at or m.now) <= m.now and switches.held_by(job.project) is None:
        dispatch_retry(m, job)


def release_start(m: Moves, job: JobRow) -> None:
    """Queue a job whose start time has come."""
    leave_waiting(m, job, DUE)
    m.log("job.released", job, job.reason)


def hold_due(m: Moves, job: JobRow, held: str) -> None:
    """Hold a retry that came due under a kill switch: without a due time, so that loops skip it."""
    job.wait_cause, job.wait_until = RETRIES_HELD, None
    m.touch(job, _say(job, f"{held} holds all retries"))
    hold_retry(m, job, held)


def resume_retry(m: Moves, job: JobRow) -> None:
    """Release a held retry: it backs off until its due time, which may have passed already."""
    job.wait_cause, job.wait_until = BACK_OFF, job.retry_at or m.now
    m.touch(job, _say(job, "retries are no longer held"))
    m.log(
        "job.retry_resumed",
        job,
        job.reason,
        retry_count=job.retries_charged,
        due_at=job.wait_until.isoformat(),
    )


def _say(job: JobRow, text: str) -> str:
    if job.cause is None:
        return f"its next attempt: {text}"
    counted = CHARGED_TO[job.cause] is Budget.RETRIES
    which = f"retry {job.retries_charged}" if counted else "its next attempt"
    return f"{which} after {job.cause}: {text}"
