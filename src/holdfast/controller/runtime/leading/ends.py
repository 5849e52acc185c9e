"""Find how long queued and running jobs will take: by the limits in force, by their specs, and by
the durations of earlier jobs."""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from holdfast.controller.runtime.remembered import History, Spans
from holdfast.controller.runtime.settings import Settings
from holdfast.core.placement.holds import foretell_end
from holdfast.core.placement.types import Candidate, RunningTask
from holdfast.store.postgres.store import PostgresStore

Each = TypeVar("Each", Candidate, RunningTask)


async def foresee_ends(
    store: PostgresStore, history: History, candidates: Sequence[Candidate], settings: Settings
) -> tuple[list[Candidate], list[RunningTask]]:
    """Return the candidates with the time limits in force and their expected durations, and the tasks that
    hold room with their expected ends."""
    tasks = await store.admission.read_running()
    jobs = [_with_limit(job, settings) for job in candidates]
    every: list[Candidate | RunningTask] = [*jobs, *tasks]
    unknown = {(e.project, e.kin) for e in every if e.kin and e.expected_seconds is None}
    spans = await history.find(unknown)
    return (
        [_with_expectation(job, spans) for job in jobs],
        [_with_end(_with_expectation(task, spans), settings) for task in tasks],
    )


def _with_limit(job: Candidate, settings: Settings) -> Candidate:
    """Return the job with the time limit in force, which decides whether it may use held-back
    room."""
    limit = _limit_in_force(job, settings)
    if limit == job.time_limit_seconds:
        return job
    return msgspec.structs.replace(job, time_limit_seconds=limit)


def _with_expectation(job: Each, spans: Spans) -> Each:
    """Return the job with its expected duration, from its history where its spec names none."""
    if job.expected_seconds is not None:
        return job
    seconds = spans.get((job.project, job.kin))
    return job if seconds is None else msgspec.structs.replace(job, expected_seconds=seconds)


def _with_end(task: RunningTask, settings: Settings) -> RunningTask:
    """Return the task with its expected end. A task that has not run for long enough yet may be
    neither stopped nor preempted."""
    limit = _limit_in_force(task, settings)
    ends, foretold = foretell_end(task.ran_seconds, limit, task.expected_seconds)
    young = task.ran_seconds < settings.min_run_seconds(task)
    return msgspec.structs.replace(
        task,
        ends_in_seconds=ends,
        foretold=foretold,
        stoppable=task.stoppable and not young,
        preemptible=task.preemptible and not young,
    )


def _limit_in_force(job: Candidate | RunningTask, settings: Settings) -> float | None:
    own = job.time_limit_seconds
    if own is not None:
        return None if math.isinf(own) else own
    limit = settings.value("time_limit_seconds", job.queue, project=job.project)
    return None if limit is None else float(limit)
