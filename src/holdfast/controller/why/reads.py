"""What `why` goes by, read from the store for many jobs at once: as many calls for a hundred jobs
as for one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.why.circumstances import Circumstances, YoungJob
from holdfast.core.placement.plan import RunningTask
from holdfast.core.placement.preemption import find_winner
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.store.port.store import JobFilter

MAX_DRAINING = 1000
MAX_RANKS = 4096  # of a larger gang the others are not looked at one by one


async def find_circumstances(
    controller: Controller, jobs: Sequence[JobRecord]
) -> list[Circumstances]:
    """What is known around each of `jobs`, in their order."""
    store, ids = controller.store, [job.id for job in jobs]
    queued = [job.id for job in jobs if job.state is JobState.QUEUED]
    newest = {job.id: (job.id, job.attempts) for job in jobs if _looks_back(job)}
    settings = await controller.settings.current()
    hosts, tasks, now, queues, projects = await asyncio.gather(
        store.list_hosts(),
        store.list_tasks_of(ids, first=MAX_RANKS),
        store.now(),
        store.list_queues(),
        store.list_projects(),
    )
    places = await store.queue_places(queued) if queued else {}
    attempts = await store.get_attempts(newest.values(), members=True) if newest else {}
    reserved = [job.id for job in jobs if job.state is JobState.RESERVED]
    starts = (
        {r.job.id: r.start_limit for r in await store.list_reserved(reserved)} if reserved else {}
    )
    victims = await _find_victims(controller) if queued else {}
    young = (
        await _find_young(controller, settings) if queued and settings.value("preemption") else []
    )
    queue_of, project_of, hosts_ = (
        {q.name: q for q in queues},
        {p.name: p for p in projects},
        tuple(hosts),
    )
    found = []
    for job in jobs:
        waits = job.state in (JobState.QUEUED, JobState.WAITING)
        start = starts.get(job.id)
        found.append(
            Circumstances(
                job=job,
                queue=queue_of.get(job.queue),
                tasks=tuple(tasks.get(job.id, ())),
                hosts=hosts_,
                place=places.get(job.id, 0),
                now=now,
                refusal=controller.refusals.find(job.id),
                led=controller.leadership.since is not None,
                project=project_of.get(job.project) if waits else None,
                last_attempt=attempts.get((job.id, job.attempts)),
                victims=tuple(victims.get(job.id, ())) if job.state is JobState.QUEUED else (),
                young=tuple(y for y in young if y.priority < job.priority)
                if job.state is JobState.QUEUED
                else (),
                start_limit=None
                if start is None
                else (start, settings.number(start, job.queue, job.spec)),
                **_read_rules(settings, job),
            )
        )
    return found


def _read_rules(settings: Settings, job: JobRecord) -> dict[str, Any]:
    """What the settings in force say about it."""
    return {
        "max_running": settings.value("max_running", job.queue, job.spec),
        "policy": settings.policy(job.queue, job.spec),
        "holders": tuple(settings.find_holders()),
        "rate_limit": settings.value("retry_rate_limit"),
        "quota_jobs": settings.value("quota_jobs", job.queue, job.spec),
        "quota_gpus": settings.value("quota_gpus", job.queue, job.spec),
        "reservation_seconds": settings.number("reservation_seconds"),
    }


def _looks_back(job: JobRecord) -> bool:
    states = (JobState.QUEUED, JobState.WAITING, JobState.RESERVED, JobState.FAILED)
    return job.attempts > 0 and job.state in states


async def _find_victims(controller: Controller) -> dict[str, list[JobRecord]]:
    """Job → those being stopped so that it can start: their drains name it, whichever server asked
    for them."""
    found: dict[str, list[JobRecord]] = {}
    draining = await controller.store.list_jobs(
        JobFilter(states=(JobState.DRAINING,), limit=MAX_DRAINING)
    )
    for other in draining:
        winner = find_winner(other.drain_reason)
        if winner is not None:
            found.setdefault(winner[0], []).append(other)
    return found


async def _find_young(controller: Controller, settings: Settings) -> list[YoungJob]:
    """What could be preempted but for the time it has run."""
    tasks: dict[str, list[RunningTask]] = {}
    for task in await controller.store.read_running():
        if task.preemptible and not task.draining:
            tasks.setdefault(task.job_id, []).append(task)
    found = []
    for job_id, own in tasks.items():
        least = settings.number("preempt_min_run_seconds", own[0].queue)
        left = least - min(task.ran_seconds for task in own)
        if left > 0:
            hosts = frozenset(task.host_id for task in own)
            found.append(
                YoungJob(
                    job_id=job_id,
                    priority=own[0].priority,
                    host_ids=hosts,
                    left_seconds=left,
                    least_seconds=least,
                )
            )
    return sorted(found, key=lambda young: (young.left_seconds, young.job_id))
