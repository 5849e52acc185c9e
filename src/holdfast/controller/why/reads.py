"""The facts that `why` works from, read from the store for many jobs at once, in as many calls as
for one."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.controller.report.sums import find_idle_policy
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.why.circumstances import Circumstances, YoungJob
from holdfast.controller.why.limits import make_limits
from holdfast.core.arrays.arrays import IN_LINE
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.bundles.code import find_old_environment
from holdfast.core.fleet.records import PoolRecord
from holdfast.core.placement.candidates import as_candidate
from holdfast.core.placement.eligible import is_eligible, serves
from holdfast.core.placement.plan import RunningTask
from holdfast.core.placement.preemption import find_winner
from holdfast.core.placement.shares import Shares
from holdfast.core.placement.types import Share, find_kin
from holdfast.core.records import HostRecord, JobRecord, TaskRecord, WaitRecord
from holdfast.core.report.idle import IdleGpus
from holdfast.core.states import JobState
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.moves.rows import DEPENDENCY
from holdfast.moves.values import JobFilter
from holdfast.wire.api import JobLimits

_WAITS = (JobState.QUEUED, JobState.WAITING)
_BEGIN_BYTES = 16_384
_RUNS = (JobState.RUNNING, JobState.DRAINING)
MAX_DRAINING = 1000
MAX_WAITS = 20
MAX_RANKS = 4096  # the ranks beyond these in a larger gang are not looked at one by one


async def find_circumstances(
    controller: Controller, jobs: Sequence[JobRecord]
) -> list[Circumstances]:
    """Return the facts around each of `jobs`, in their order."""
    store, ids = controller.store, [job.id for job in jobs]
    queued = [job.id for job in jobs if job.state is JobState.QUEUED]
    newest = {job.id: (job.id, job.attempts) for job in jobs if _looks_back(job)}
    settings = await controller.settings.current()
    tasks = await store.jobs.list_tasks_of(ids, first=MAX_RANKS)
    hosts, now, queues, projects, pools = await asyncio.gather(
        store.hosts.list_hosts() if queued else _read_hosts_of(controller, tasks),
        store.now(),
        store.settings.list_live_queues(),
        store.settings.list_live_projects({job.project for job in jobs}),
        store.fleet.list_pools(),
    )
    serving = {job.id: _list_pools(job, pools) for job in jobs if job.state is JobState.QUEUED}
    sizes = tuple(await controller.sizes.refresh()) if any(serving.values()) else ()
    places = await store.jobs.queue_places(queued) if queued else {}
    attempts = await store.jobs.get_attempts(newest.values(), members=True) if newest else {}
    ends, lines = await _read_waits(controller, jobs)
    idle, suspects = await _find_idle(controller, jobs), await _read_suspects(controller, jobs)
    starts, winners = await _read_starts(controller, jobs), await _read_winners(controller, jobs)
    victims = await _find_victims(controller) if queued else {}
    shares = settings.find_shares(projects)
    looks = queued and (settings.value("preemption") or shares)
    running = await store.admission.read_running() if looks else []
    young, held = _find_young(running, settings), Shares(shares, running)
    queue_of, project_of = {q.name: q for q in queues}, {p.name: p for p in projects}
    found, all_hosts, stops = [], tuple(hosts), await find_limits(controller, settings, jobs)
    for job, limits in zip(jobs, stops, strict=True):
        is_queued = job.state is JobState.QUEUED
        found.append(
            Circumstances(
                job=job,
                queue=queue_of.get(job.queue),
                tasks=tuple(tasks.get(job.id, ())),
                hosts=all_hosts,
                place=places.get(job.id, 0),
                now=now,
                limits=limits,
                refusal=controller.refusals.find(job.id),
                led=controller.leadership.since is not None,
                project=project_of.get(job.project) if job.state in _WAITS else None,
                last_attempt=attempts.get((job.id, job.attempts)),
                victims=tuple(victims.get(job.id, ())) if is_queued else (),
                winner=winners.get(job.id),
                young=tuple(y for y in young if _yields(y, job, held)) if is_queued else (),
                **_read_share(job, shares.get(job.project), held, running, all_hosts),
                start_limit=_find_start_limit(settings, job, starts.get(job.id)),
                array=lines.get(job.array_id or ""),
                sizes=sizes if is_queued else (),
                waits=tuple(ends.get(job.id, ())),
                suspects=tuple(suspects.get(job.id, ())),
                idle=idle.get(job.id),
                pools=serving.get(job.id, ()),
                **_read_rules(settings, job),
            )
        )
    return found


async def _read_hosts_of(
    controller: Controller, tasks: Mapping[str, Sequence[TaskRecord]]
) -> list[HostRecord]:
    """Return the hosts of tasks, which are all that the reasons of jobs that are not queued name."""
    ids = {task.host_id for those in tasks.values() for task in those if task.host_id}
    return list((await controller.store.hosts.get_hosts(ids)).values()) if ids else []


def _find_start_limit(
    settings: Settings, job: JobRecord, name: str | None
) -> tuple[str, float] | None:
    return None if name is None else (name, settings.start_limit(name, job.queue, job.spec))


async def _find_idle(controller: Controller, jobs: Sequence[JobRecord]) -> dict[str, IdleGpus]:
    """Return what is known of the running jobs whose GPUs do nothing."""
    epochs = {job.id: job.epoch for job in jobs if job.gpus and job.state is JobState.RUNNING}
    found = await controller.store.money.read_idle_gpus() if epochs else []
    return {one.job_id: one for one in found if epochs.get(one.job_id) == one.epoch}


async def find_environment(controller: Controller, job: JobRecord) -> str | None:
    """Return what the begin of the newest attempt's log says of an environment that was made long
    before; None for a job without an environment of its own."""
    if job.attempts == 0 or not job.spec.makes_environment:
        return None
    chunks = await controller.store.logs.read_log(
        job.id, job.attempts, 0, "stdout", 0, limit_bytes=_BEGIN_BYTES
    )
    text = b"".join(chunk.data for chunk in chunks).decode(errors="replace")
    return find_old_environment(text[:_BEGIN_BYTES])


async def find_limits(
    controller: Controller, settings: Settings, jobs: Sequence[JobRecord]
) -> list[JobLimits]:
    """Return the limits that stop each of `jobs`, and how long it should take."""
    kin = {job.id: (job.project, find_kin(job.spec, job.array_id)) for job in jobs}
    asked = [kin[j.id] for j in jobs if kin[j.id][1] and j.spec.expected_seconds is None]
    spans = await controller.spans.find(asked) if asked else {}
    return [
        make_limits(
            job,
            settings.time_limit(job.queue, job.spec),
            spans.get(kin[job.id]),
            settings.watch(job.queue, job.spec),
        )
        for job in jobs
    ]


async def _read_starts(controller: Controller, jobs: Sequence[JobRecord]) -> dict[str, str]:
    """Return job id → the setting that limits the start of the reserved job."""
    reserved = [job.id for job in jobs if job.state is JobState.RESERVED]
    rows = await controller.store.admission.list_reserved(reserved) if reserved else []
    return {row.job.id: row.start_limit for row in rows}


def _list_pools(job: JobRecord, pools: Iterable[PoolRecord]) -> tuple[PoolRecord, ...]:
    """Return the pools that serve the job's queue."""
    return tuple(pool for pool in pools if serves(pool.spec.queues, job.queue))


async def _read_suspects(
    controller: Controller, jobs: Sequence[JobRecord]
) -> dict[str, list[SuspectRecord]]:
    """Return the suspects of the present attempts of running jobs, by job id."""
    runs = {job.id: job.attempts for job in jobs if job.state in _RUNS}
    found: dict[str, list[SuspectRecord]] = {}
    for one in await controller.store.suspects.list_suspects(runs) if runs else ():
        if one.attempt == runs[one.job_id] and one.ended_at is None:
            found.setdefault(one.job_id, []).append(one)
    return found


async def _read_waits(
    controller: Controller, jobs: Sequence[JobRecord]
) -> tuple[dict[str, list[WaitRecord]], dict[str, ArrayRecord]]:
    """Return the ends that jobs wait for, and the arrays in which they wait for their turn, by job
    id."""
    store = controller.store
    waiting = [job.id for job in jobs if job.wait_cause in (DEPENDENCY, IN_LINE)]
    lines = {job.array_id for job in jobs if job.wait_cause == IN_LINE and job.array_id}
    arrays = {array_id: await store.arrays.get_array(array_id) for array_id in sorted(lines)}
    if not waiting:
        return {}, arrays
    return await store.dependencies.list_waits(waiting, first=MAX_WAITS), arrays


def _read_rules(settings: Settings, job: JobRecord) -> dict[str, Any]:
    """Return the settings in force for a job, as fields of `Circumstances`."""
    return {
        "max_running": settings.value("max_running", job.queue, job.spec),
        "policy": settings.policy(job.queue, job.spec),
        "holders": tuple(settings.find_holders()),
        "rate_limit": settings.value("retry_rate_limit"),
        "quota_jobs": settings.value("quota_jobs", job.queue, job.spec),
        "quota_gpus": settings.value("quota_gpus", job.queue, job.spec),
        "idle_policy": find_idle_policy(settings, job),
        "watch": settings.watch(job.queue, job.spec),
        "silence_seconds": settings.silence_seconds,
        "reservation_seconds": settings.number("reservation_seconds"),
    }


def _looks_back(job: JobRecord) -> bool:
    states = (JobState.QUEUED, JobState.WAITING, JobState.RESERVED, JobState.FAILED)
    return job.attempts > 0 and job.state in states


async def _find_victims(controller: Controller) -> dict[str, list[JobRecord]]:
    """Return job id → the jobs being stopped so that this job can start. The drains of those jobs
    name it, whichever server began them."""
    found: dict[str, list[JobRecord]] = {}
    draining = await controller.store.jobs.list_jobs(
        JobFilter(states=(JobState.DRAINING,), limit=MAX_DRAINING)
    )
    for other in draining:
        winner = find_winner(other.drain_reason)
        if winner is not None:
            found.setdefault(winner.job_id, []).append(other)
    return found


async def _read_winners(controller: Controller, jobs: Sequence[JobRecord]) -> dict[str, JobRecord]:
    """Return job id → the job for which it is being stopped, where that is on record."""
    stopped = {job.id: find_winner(job.drain_reason) for job in jobs if job.drain_reason}
    names = {job_id: winner.job_id for job_id, winner in stopped.items() if winner is not None}
    found = await controller.store.jobs.get_jobs(sorted(set(names.values()))) if names else {}
    return {job_id: found[name] for job_id, name in names.items() if name in found}


def _find_young(running: Iterable[RunningTask], settings: Settings) -> list[YoungJob]:
    """Return the jobs that could be stopped for more important jobs if they had run for longer."""
    tasks: dict[str, list[RunningTask]] = {}
    for task in running:
        if (task.preemptible or task.stoppable) and not task.draining:
            tasks.setdefault(task.job_id, []).append(task)
    found = []
    for job_id, own in tasks.items():
        least = settings.min_run_seconds(own[0])
        young = YoungJob(
            job_id=job_id,
            priority=own[0].priority,
            project=own[0].project,
            preemptible=own[0].preemptible and settings.value("preemption") is True,
            host_ids=frozenset(task.host_id for task in own),
            left_seconds=least - min(task.ran_seconds for task in own),
            least_seconds=least,
        )
        if young.left_seconds > 0:
            found.append(young)
    return sorted(found, key=lambda young: (young.left_seconds, young.job_id))


def _read_share(
    job: JobRecord,
    share: Share | None,
    held: Shares,
    running: Sequence[RunningTask],
    hosts: Sequence[HostRecord],
) -> dict[str, Any]:
    """Return fields of `Circumstances`: the share of the job's project, and whether the job can
    reclaim borrowed room. It can where a project that uses more than its share runs a task that may
    be stopped, on a host that the job may use."""
    if share is None:
        return {}
    asker = as_candidate(job)
    borrowers = held.order_borrowers(asker, running) if held.may_reclaim(asker) else []
    fit = {host.id for host in hosts if is_eligible(host, job.queue, job.spec.host_labels)}
    reclaims = any(
        task.project in borrowers and task.stoppable and task.host_id in fit for task in running
    )
    return {"share": share, "reclaims": reclaims}


def _yields(young: YoungJob, job: JobRecord, shares: Shares) -> bool:
    """Return whether the young job may be stopped to make room for `job`, once the young job has
    run for long enough."""
    asker = as_candidate(job)
    owns = shares.owns(asker) if shares else True
    spares = shares.spare(asker, [young.job_id]) if shares else False
    if shares and owns and spares and young.project != job.project:
        return True
    return young.preemptible and young.priority < job.priority and (owns or spares)
