"""The moves of a supervised job's members, each stopped, replaced and placed by itself.

A task in `failed` or `preempted` while its job is reserved or running has *fallen*, and waits for
the decision (`core.endings.replace`). A task in `blocked` waits for another host, or is parked if
it has no time for that. None of these tasks reserves any room.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.endings.replace import Replacement
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement
from holdfast.core.states import JobState, TaskEvent, TaskState
from holdfast.moves.jobs import drains, runs
from holdfast.moves.jobs.moves import Moves
from holdfast.moves.jobs.room import RoomCheck
from holdfast.moves.rows import JobRow, TaskRow
from holdfast.moves.values import Seated

FALLEN = (TaskState.FAILED, TaskState.PREEMPTED)
GOING_ON = (JobState.RESERVED, JobState.RUNNING)


def find_fallen(m: Moves, job: JobRow, rank: int, epoch: int) -> TaskRow | None:
    """Return the fallen member of this rank and epoch, or None where no such member has fallen."""
    task = m.tasks[job.id].get(rank)
    fallen = task is not None and task.epoch == epoch and task.state in FALLEN
    return task if fallen and job.supervised and job.state in GOING_ON else None


def may_stop(job: JobRow, task: TaskRow) -> bool:
    """Return whether one task can be stopped by itself: a live member, and not rank 0."""
    live = task.state in (TaskState.RESERVED, TaskState.RUNNING) and task.barrier
    return job.supervised and job.state in GOING_ON and task.rank > 0 and live


def may_seat(m: Moves, job: JobRow, placement: JobPlacement, room: RoomCheck) -> bool:
    """Return whether the members of a placement still wait under its epoch and fit; reserve their
    room then."""
    tasks = m.tasks[job.id]
    if job.state not in GOING_ON or job.epoch != placement.epoch:
        return False
    found = [tasks[p.rank] for p in placement.tasks if p.rank in tasks]
    waiting = [t for t in found if t.state is TaskState.BLOCKED and not is_parked(t)]
    if len(waiting) != len(placement.tasks) or not waiting:
        return False
    need = waiting[0].gpus, waiting[0].cpu_slots, waiting[0].memory_bytes
    return room.reserve_job(placement.tasks, need)


def list_avoided(
    avoid_hosts: Sequence[str], first: str | None, earlier: Sequence[str], peers: Sequence[str]
) -> tuple[str, ...]:
    """Return the hosts to use last for a blocked member: the ones that its job avoids, the ones
    that it was on, and those of the other members, which should be on different machines."""
    return tuple(dict.fromkeys((*avoid_hosts, *((first,) if first else ()), *earlier, *peers)))


def join_placements(placements: Sequence[JobPlacement]) -> list[JobPlacement]:
    """Return one placement for each job, made of the placements of its members, because members
    that are placed together share an epoch."""
    by_job: dict[str, list[JobPlacement]] = {}
    for placement in placements:
        by_job.setdefault(placement.job_id, []).append(placement)
    joined = []
    for _, some in sorted(by_job.items()):
        tasks = tuple(task for placement in some for task in placement.tasks)
        joined.append(msgspec.structs.replace(some[0], tasks=tasks))
    return joined


def asked_before(now: datetime, reservation_seconds: float) -> datetime:
    """Return the time before which a reservation that its host has not asked for is given up."""
    return now - timedelta(seconds=reservation_seconds)


def stop_member(
    m: Moves, job: JobRow, task: TaskRow, cause: Cause, reason: str, *, hard: bool = False
) -> None:
    """Stop one member, because its host is needed or it does not come up."""
    if not may_stop(job, task):
        return
    idle = task.offered_at is None
    task.stop_cause, task.stop_reason, task.stop_hard = cause, reason, hard
    m.move_task(task, TaskEvent.PREEMPT)
    m.rewrite(task)
    if idle:
        m.move_task(task, TaskEvent.CONFIRM)
    m.touch(job, job.reason)
    text, data = f"rank {task.rank}: {reason}", {"cause": str(cause), "hard": hard or None}
    m.log("task.stopping", job, text, task=task, **data)


def stop_on_host(m: Moves, job: JobRow, host_id: str, cause: Cause, reason: str) -> bool:
    """Stop a supervised job's members on one host. Return False where the whole job must fall
    instead, because its script runs there or the job has not started."""
    here = [t for t in m.ranks(job) if t.host_id == host_id and t.state.holds_lease]
    if not job.supervised or any(t.rank == 0 or not t.barrier for t in here):
        return False
    for task in here:
        stop_member(m, job, task, cause, reason)
    return True


def replace_members(
    m: Moves, plans: Sequence[tuple[TaskKey, Replacement]]
) -> tuple[list[TaskKey], dict[str, str]]:
    """Carry out decisions in their order; after one that ends its job the job's others are void.

    Returns the keys whose decisions were carried out, and host id → the evidence against it.
    """
    done: list[TaskKey] = []
    suspects: dict[str, str] = {}
    for key, plan in plans:
        job = m.jobs.get(key.job_id)
        task = None if job is None else find_fallen(m, job, key.rank, key.epoch)
        if job is None or task is None:
            continue
        if plan.quarantine_host and task.host_id is not None:
            suspects[task.host_id] = plan.reason
        replace_member(m, job, task, plan)
        done.append(key)
    return done, suspects


def replace_member(m: Moves, job: JobRow, task: TaskRow, plan: Replacement) -> None:
    """Carry out a decision: the member waits for another host, or the whole job falls."""
    before = job.rank_charges.get(str(task.rank))
    if plan.charges != (before or type(plan.charges)()):
        job.infra_charged += plan.charges.infra - (before.infra if before else 0)
        job.watchdog_charged += plan.charges.watchdog - (before.watchdog if before else 0)
        job.infra_charged = max(0, job.infra_charged)
        job.watchdog_charged = max(0, job.watchdog_charged)
        job.rank_charges = {**job.rank_charges, str(task.rank): plan.charges}
    if not plan.go_on:
        drains.begin_drain(m, job, plan.cause, plan.reason, trigger=task)
        return
    m.log(
        "task.parked" if plan.parked else "task.replaced",
        job,
        plan.reason,
        task=task,
        cause=str(plan.cause),
        rule=plan.rule,
        charged_to=str(plan.charged_to),
        exit_code=plan.exit_code,
        delay_seconds=plan.delay_seconds or None,
    )
    if task.host_id is not None and plan.bar_host:
        job.barred_hosts = tuple(dict.fromkeys((*job.barred_hosts, task.host_id)))
    m.touch(job, job.reason)
    m.move_task(task, TaskEvent.RESET)
    m.end_lease(task)
    _empty(task)
    task.ready_at = m.now + timedelta(seconds=plan.delay_seconds)
    task.start_failures = plan.start_failures
    if plan.parked:
        task.ready_at, task.stop_cause, task.stop_reason = None, plan.cause, plan.reason
    task.replaced += 1
    m.rewrite(task)
    runs.start_job(m, job)


def unpark(m: Moves, job: JobRow, reason: str) -> bool:
    """Place parked members again for a person's `retry`, their failed starts forgotten (MEMBER-5);
    return whether there were any."""
    parked = [] if job.state not in GOING_ON else [t for t in m.ranks(job) if is_parked(t)]
    for task in parked:
        task.ready_at, task.start_failures, task.stop_cause, task.stop_reason = m.now, 0, None, None
        m.rewrite(task)
        m.log("task.released", job, f"rank {task.rank}: {reason}", task=task)
    if parked:
        m.touch(job, job.reason)
    return bool(parked)


def is_parked(task: TaskRow) -> bool:
    """Return whether the task waits for a person, not for a host."""
    return task.state is TaskState.BLOCKED and task.ready_at is None


def seat_members(
    m: Moves, job: JobRow, placement: JobPlacement, ttl_seconds: float, names: dict[str, str]
) -> None:
    """Place blocked members under a new epoch. The caller has checked them with `may_seat`."""
    job.epoch += 1
    for place in placement.tasks:
        task = m.tasks[job.id][place.rank]
        m.move_task(task, TaskEvent.RESERVE)
        task.epoch, task.host_id, task.incarnation = job.epoch, place.host_id, place.incarnation
        task.host_name, task.devices = names.get(place.host_id), place.devices
        task.lease_ttl_seconds, task.reserved_at, task.ready_at = ttl_seconds, m.now, None
        task.barrier = True  # the others run already, so it waits for none of them (GANG-1)
        m.rewrite(task)
        m.seated.append(
            Seated(
                job_id=job.id,
                rank=task.rank,
                epoch=task.epoch,
                attempt=task.attempt,
                number=task.replaced,
                host_id=place.host_id,
            )
        )
        text = f"rank {task.rank} is reserved on {task.host_name}, replacement {task.replaced}"
        m.log("task.reserved", job, text, task=task)
    m.touch(job, job.reason)


def release_unoffered(m: Moves, job: JobRow, before: datetime) -> bool:
    """Release reservations of replacements that their hosts did not ask for in time; return whether
    there were any. before: reservations made then or earlier are late."""
    found = False
    for task in m.ranks(job):
        late = task.reserved_at is not None and task.reserved_at <= before
        if not (
            late and task.replaced and task.state is TaskState.RESERVED and task.offered_at is None
        ):
            continue
        text = f"rank {task.rank}: {task.host_name} did not ask for it in time"
        m.log("task.expired", job, text, task=task)
        m.move_task(task, TaskEvent.RELEASE)
        m.end_lease(task)
        _empty(task)
        task.ready_at = m.now
        m.rewrite(task)
        found = True
    if found:
        m.touch(job, job.reason)
    return found


def _empty(task: TaskRow) -> None:
    """Clear the row of a rank that is on no host."""
    task.host_id = task.host_name = task.incarnation = None
    task.devices, task.port = (), None
    task.lease_until = task.offered_at = task.claimed_at = None
    task.started_at = task.ended_at = task.reserved_at = None
    task.step = task.total = task.beat_at = task.first_beat_at = None
    task.rate = task.moved_at = None
    task.section, task.facts, task.nan_beats = None, None, 0
    task.stop_cause = task.stop_reason = None
    task.stop_hard = False
