"""The snapshot of a cycle, in memory."""

from collections.abc import Mapping
from datetime import datetime

from holdfast.core.causes import Cause
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import PoolMoney
from holdfast.core.fleet.snapshot import (
    FleetHost,
    FleetSnapshot,
    OfferTrouble,
    PoolView,
    SpawnOutcome,
    Waiting,
)
from holdfast.core.host_faults import is_set_aside
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostState, InstanceState, JobState, TaskState
from holdfast.moves.fleet import pools as moves
from holdfast.moves.fleet import rented
from holdfast.moves.jobs.moves import LIVE_JOB_STATES
from holdfast.store.memory.fleet.pools import is_open
from holdfast.store.memory.hosts import seen_memory
from holdfast.store.memory.settings import quotas_left
from holdfast.store.memory.state import MemoryHost, MemoryInstance, MemoryJob, MemoryState


def show_fleet(
    s: MemoryState,
    environment: Mapping[str, Value],
    money: Mapping[str, PoolMoney],
    outcome_seconds: float,
    grace_seconds: float,
    at: datetime,
) -> FleetSnapshot:
    """Return the snapshot of a cycle."""
    views = []
    seen = seen_memory(s)
    for name, pool in sorted(s.pools.items()):
        spent = money.get(name)
        views.append(
            PoolView(
                spec=moves.effective_spec(
                    moves.learn_memory(pool.spec, seen), deleted=pool.deleted_at is not None
                ),
                hosts=tuple(
                    _show(s, pool.spec, i, at, grace_seconds)
                    for _, i in sorted(s.instances.items())
                    if i.pool == name and is_open(s, i)
                ),
                paused=moves.find_pause(pool.paused_at, pool.paused_reason, pool.deleted_at),
                quiet_seconds=moves.seconds_until(at, pool.quiet_until),
                quiet_reason=pool.quiet_reason,
                spent_today_usd=0.0 if spent is None else spent.spent_today_usd,
                outcomes=tuple(
                    SpawnOutcome(age_seconds=age, offer=offer, fault=fault, reason=reason)
                    for when, of, offer, fault, reason in reversed(s.outcomes)
                    if of == name and (age := moves.seconds_since(at, when)) < outcome_seconds
                ),
                trouble={
                    offer: OfferTrouble(
                        refusals=count, age_seconds=moves.seconds_since(at, when), reason=why
                    )
                    for (of, offer), (count, when, why) in sorted(s.troubles.items())
                    if of == name
                },
            )
        )
    waiting = tuple(_wait_by_shape(s, at))
    quotas = quotas_left(s, environment, {w.project for w in waiting if w.project})
    return FleetSnapshot(at=at, pools=tuple(views), waiting=waiting, quotas=quotas)


def _show(
    s: MemoryState, spec: PoolSpec, found: MemoryInstance, at: datetime, grace_seconds: float
) -> FleetHost:
    host, live = s.hosts[found.host_id], s.live_tasks(found.host_id)
    idle_from = max(filter(None, (found.active_at, host.busy_at)), default=None)
    stopping = [t for t in live if t.state is TaskState.PREEMPTING]
    overdue = [
        (moves.seconds_since(at, since) - (grace_seconds if own is None else own))
        for t in stopping
        if (since := s.jobs[t.job_id].row.drain_since) is not None
        for own in (s.jobs[t.job_id].spec.grace_seconds,)
    ]
    checking = host.state is HostState.PREFLIGHT
    verdict = rented.judge_host(
        spec,
        host.state,
        found.offer,
        cpu_slots=host.cpu_slots if checking else 0,
        memory_bytes=host.memory_bytes if checking else 0,
        gpus=host.gpus,
        check=_find_preflight(s, host),
    )
    reading = s.telemetry.get(host.id)
    return FleetHost(
        host_id=host.id,
        name=host.name,
        state=host.state,
        instance=found.state,
        offer=found.offer,
        usd_per_hour=found.usd_per_hour,
        ref=found.ref,
        state_seconds=moves.seconds_since(at, host.state_at),
        intent_seconds=moves.seconds_since(at, found.intended_at),
        asked_seconds=_age(at, found.asked_at),
        seen_seconds=_age(at, found.seen_at),
        misses=found.missing_times,
        missing_seconds=_age(at, found.missing_since) or 0.0,
        heartbeat_seconds=(
            moves.seconds_since(at, host.heartbeat_at) if host.incarnation else None
        ),
        idle_seconds=(
            None if live or found.active_at is None else moves.seconds_since(at, idle_from)
        ),
        leases=len(live),
        aside=is_set_aside(host.faults),
        stuck=rented.say_stuck(
            spec, min((t.job_id for t in stopping), default=None), max(overdue, default=None)
        ),
        telemetry_seconds=None if reading is None else moves.seconds_since(at, reading.at),
        preflight=verdict.result,
        preflight_reason=verdict.reason,
        draining_for_scale=(
            host.state is HostState.DRAINING and host.drain_cause is Cause.SCALED_DOWN
        ),
        said=found.said,
        lost=found.lost,
        reason=host.reason if host.state is HostState.ERROR else "",
        gone=found.reason if found.state is InstanceState.GONE else "",
    )


def _age(at: datetime, then: datetime | None) -> float | None:
    return None if then is None else moves.seconds_since(at, then)


def _find_preflight(s: MemoryState, host: MemoryHost) -> tuple[str, str] | None:
    made = [
        check
        for (of, _), check in s.checks.items()
        if of == host.id and check.kind == "preflight" and check.incarnation == host.incarnation
    ]
    newest = max(made, key=lambda check: check.at, default=None)
    return None if newest is None else (str(newest.verdict), newest.message)


def _wait_by_shape(s: MemoryState, at: datetime) -> list[Waiting]:
    """Return the queued jobs by shape, then the members of supervised jobs that wait for a host."""
    found: dict[tuple[object, ...], Waiting] = {}
    for job_id in s.by_state[JobState.QUEUED]:
        job = s.jobs[job_id]
        if s.queues[job.row.queue].paused_at is None:
            age = moves.seconds_since(at, job.row.queued_at)
            _count(found, job.row.queue, job.row.tasks, job, age, job.row.project)
    jobs = list(found.values())
    found = {}
    for state in LIVE_JOB_STATES:
        for job_id in s.by_state[state] if state is not JobState.DRAINING else ():
            for task in s.tasks.get(job_id, {}).values():
                if (
                    task.state is TaskState.BLOCKED
                    and task.ready_at is not None
                    and task.ready_at <= at
                ):
                    age = moves.seconds_since(at, task.ready_at)
                    _count(found, task.queue, 1, s.jobs[job_id], age)
    return jobs + list(found.values())


def _count(
    found: dict[tuple[object, ...], Waiting],
    queue: str,
    tasks: int,
    job: MemoryJob,
    age: float,
    project: str = "",
) -> None:
    labels = dict(job.spec.host_labels)
    shape = (tasks, job.gpus, job.cpu_slots, job.memory_bytes, tuple(sorted(labels.items())))
    key = (queue, project, *shape)
    known = found.get(key)
    found[key] = Waiting(
        queue=queue,
        project=project,
        jobs=1 + (0 if known is None else known.jobs),
        tasks=tasks,
        gpus=job.gpus,
        cpu_slots=job.cpu_slots,
        memory_bytes=job.memory_bytes,
        host_labels=labels,
        oldest_seconds=max(age, 0.0 if known is None else known.oldest_seconds),
    )
