"""Retries that are due: placed, started, held back by a kill switch, or let go again.

RETRY-6  The kill switch is read in the transaction that dispatches, behind a lock that changes of
         it wait for: once a call that threw it has returned, nothing is dispatched under it. A
         retry it holds is kept under every budget, and costs nothing until the switch is lifted.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.core.causes import CHARGED_TO, Budget
from holdfast.core.endings.drain import Completion
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.host_faults import find_runtime_word
from holdfast.core.placement.plan import Candidate, Capacity, JobPlacement, plan_admission
from holdfast.core.records import JobFields, JobRecord, TaskRecord, shared_fields
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobEvent, JobState, TaskState
from holdfast.moves import reports
from holdfast.moves.drains import hold_retry, list_avoided, name_suspect
from holdfast.moves.moves import Moves, last_beat
from holdfast.moves.reports import Draft
from holdfast.moves.requests import DUE
from holdfast.moves.rows import BACK_OFF, RETRIES_HELD, JobRow
from holdfast.moves.values import DrainSnapshot

SWITCH = "retries_enabled"


class Switches:
    """The kill switches as they stand. Off in any layer is off: no layer outvotes another."""

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
        """Return whose switch holds the project's retries, or None."""
        return self.everywhere or (f"project {project}" if project in self.projects_off else None)


def dispatch_retry(m: Moves, job: JobRow) -> None:
    """Queue a retry whose back-off is over. The event is its audit entry."""
    due_at = job.retry_at or job.wait_until or m.now
    _leave_waiting(m, job, _say(job, "its back-off is over"))
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
    """Queue a retry that is due already, unless a kill switch holds it; others wait for the loop."""
    due = job.state is JobState.WAITING and job.wait_cause == BACK_OFF
    if due and (job.retry_at or m.now) <= m.now and switches.held_by(job.project) is None:
        dispatch_retry(m, job)


def take_fall(
    m: Moves, draft: Draft, job_id: str, queue: str, rules: Sequence[OperatorRule]
) -> JobRow | None:
    """Take the ends of every rank of a running gang, and return its job, whose drain they begin and
    make ready to be completed (DRAIN-1). None where the host tells of anything else, or more is to be
    done."""
    job = m.jobs.get(job_id)
    if job is None or job.state is not JobState.RUNNING or job.queue != queue or job.supervised:
        return None
    ranks = m.ranks(job)
    told = sorted(key for key, _ in draft.ended()) == [task.key for task in ranks]
    if not told or any(task.state is not TaskState.RUNNING for task in ranks):
        return None
    repeats = reports.apply_reports(m, [draft], set(), rules)
    held = any(task.state.holds_lease for task in ranks)
    drained = m.jobs[job_id].state is JobState.DRAINING
    if held or repeats or draft.refused or not drained:
        return None
    draft.draining.clear()  # it is completed with this
    return None if reports.find_stuck(draft) else job


def expect_drain(m: Moves, job: JobRow, before: JobRecord) -> DrainSnapshot:
    """Return the drain as it would be read after the moves. before: the job's record without them."""
    fields, beat = shared_fields(job, JobFields), last_beat(m.ranks(job))
    if beat is not None:
        fields.update(step=beat.step, total=beat.total, beat_at=beat.beat_at)
    tasks = tuple(TaskRecord(**shared_fields(task, TaskRecord)) for task in m.ranks(job))
    return DrainSnapshot(job=msgspec.structs.replace(before, **fields), tasks=tasks)


def plan_restart(
    job: JobRecord, tasks: Sequence[TaskRecord], completion: Completion, hosts: Sequence[Capacity]
) -> JobPlacement | None:
    """Return where the next attempt of a drained job goes, whose retry is due at once and is the
    first of all queues; None where that is for admission to find out."""
    if completion.decision.quarantine_host or job.spec.supervised:
        return None
    plan = plan_admission([_expect_candidate(job, tasks, completion)], hosts, {})
    return plan.placements[0] if plan.placements else None


def _expect_candidate(
    job: JobRecord, tasks: Sequence[TaskRecord], completion: Completion
) -> Candidate:
    """Return the job as admission will see it when its drain is completed."""
    rank = name_suspect(job.trigger_rank, completion)
    suspect = next((task.host_id for task in tasks if task.rank == rank), None)
    spec = job.spec
    return Candidate(
        job_id=job.id,
        epoch=job.epoch + 1,
        queue=job.queue,
        project=job.project,
        priority=job.priority,
        tasks=job.tasks,
        gpus=job.gpus,
        cpu_slots=job.cpu_slots,
        memory_bytes=job.memory_bytes,
        avoid_hosts=list_avoided(job.avoid_hosts, suspect, completion.decision),
        placement=spec.placement,
        host_labels=spec.host_labels,
        runtime=find_runtime_word(spec.image, spec.runtime),
    )


def release_start(m: Moves, job: JobRow) -> None:
    """Queue a job whose start time has come."""
    _leave_waiting(m, job, DUE)
    m.log("job.released", job, job.reason)


def _leave_waiting(m: Moves, job: JobRow, reason: str) -> None:
    m.move_job(job, JobEvent.RELEASE, reason)
    job.wait_cause = job.wait_until = job.retry_at = None
    job.queued_at = m.now


def hold_due(m: Moves, job: JobRow, held: str) -> None:
    """Hold a retry that came due under a kill switch. Without a due time, loops skip it."""
    job.wait_cause, job.wait_until = RETRIES_HELD, None
    m.touch(job, _say(job, f"{held} holds all retries"))
    hold_retry(m, job, held)


def resume_retry(m: Moves, job: JobRow) -> None:
    """Let a retry back off again, until its due time, which may have passed."""
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
