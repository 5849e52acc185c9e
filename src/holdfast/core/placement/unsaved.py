"""The work that a stop would lose, by which jobs are compared that could make room for another.

UNSAVED-1  A job loses what it did since its last saved checkpoint: each of its GPUs for as long as
           that checkpoint has been on record, whole (CKPT-2). A job that never saved loses
           everything since its attempt began. Without GPUs, its CPU slots count.
UNSAVED-2  A saved checkpoint is the job's own word that its next attempt goes on from there. Where
           `MAX_BROKEN` attempts of a job began below the step that they were given, its word is
           not taken any more: it is weighed with the median of its project instead.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Literal

import msgspec

from holdfast.core.placement.types import RunningTask

MAX_BROKEN = 2
"""How many attempts may begin below the step of their checkpoint before a job's word is not taken:
one may be a person's decision, or an accident."""


class UnsavedWork(msgspec.Struct, frozen=True, kw_only=True):
    """The work that a job loses if it is stopped now.

    seconds: how long its ranks worked on it. gpu_seconds, cpu_slot_seconds: the same times what
    they hold; a job with GPUs has no CPU slots here. by: how it is known: from a saved checkpoint,
    of step `step`; from the begin of the attempt, because none is on record; or as the median of
    its project, because its saved checkpoints were not there when it resumed.
    """

    seconds: float
    gpu_seconds: float = 0.0
    cpu_slot_seconds: float = 0.0
    by: Literal["checkpoint", "attempt", "median"] = "attempt"
    step: int | None = None


def weigh_jobs(running: Iterable[RunningTask]) -> dict[str, UnsavedWork]:
    """Return job id → what the job would lose (UNSAVED-1, UNSAVED-2)."""
    jobs: dict[str, list[RunningTask]] = {}
    for task in running:
        jobs.setdefault(task.job_id, []).append(task)
    medians = _find_medians(jobs)
    return {job_id: _weigh(tasks, medians) for job_id, tasks in jobs.items()}


def find_ran(tasks: Sequence[RunningTask]) -> float:
    """Return how long a job's attempt has run, by the rank that began first."""
    return max(task.ran_seconds for task in tasks)


def _find_medians(jobs: Mapping[str, Sequence[RunningTask]]) -> dict[str, float]:
    """Return project → the median of the seconds that its running jobs would lose, of the jobs
    whose own figures are believed."""
    known: dict[str, list[float]] = {}
    for tasks in jobs.values():
        if not _is_doubted(tasks):
            known.setdefault(tasks[0].project, []).append(_count_unsaved(tasks))
    return {project: median(seconds) for project, seconds in known.items()}


def _is_doubted(tasks: Sequence[RunningTask]) -> bool:
    return max(task.broken for task in tasks) >= MAX_BROKEN


def _count_unsaved(tasks: Sequence[RunningTask]) -> float:
    """Return the seconds of work since the job's last saved checkpoint, at most since its attempt
    began."""
    saved = [task.saved_seconds for task in tasks if task.saved_seconds is not None]
    return min([find_ran(tasks), *saved])


def _weigh(tasks: Sequence[RunningTask], medians: Mapping[str, float]) -> UnsavedWork:
    seconds, first = _count_unsaved(tasks), tasks[0]
    devices = sum(task.devices for task in tasks)
    cpu_slots = 0 if devices else sum(task.cpu_slots for task in tasks)
    by: Literal["checkpoint", "attempt", "median"] = "attempt"
    if _is_doubted(tasks):
        by, seconds = "median", medians.get(first.project, find_ran(tasks))
    elif first.saved_seconds is not None and first.saved_seconds < find_ran(tasks):
        by = "checkpoint"
    return UnsavedWork(
        seconds=seconds,
        gpu_seconds=devices * seconds,
        cpu_slot_seconds=cpu_slots * seconds,
        by=by,
        step=first.saved_step if by == "checkpoint" else None,
    )
