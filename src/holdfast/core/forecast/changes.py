"""find_changes(outlook, job, …): what would let a queued job start now. Pure.

Each change is tried by the planner itself, on the outlook, with the changed job at its place behind all jobs
that come before it (FORECAST-3). What needs several changes at once is not looked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from holdfast.core.forecast.line import is_whole, list_ahead
from holdfast.core.forecast.outlook import Change, Outlook
from holdfast.core.placement.plan import MAX_HOLDERS, AdmissionPlan, plan_admission
from holdfast.core.placement.types import Candidate

MAX_CHANGES = 5
MAX_COST = 40_000
"""The time that all plans for one job may take together, in microseconds of a usual machine."""
SPANS = ((14_400, "4h"), (7200, "2h"), (3600, "1h"), (1800, "30m"), (900, "15m"), (300, "5m"))
_GIB = 1 << 30


class _Trials:
    """The plans that were tried for one job."""

    def __init__(self, outlook: Outlook) -> None:
        self.outlook = outlook
        self.left = MAX_COST

    def try_job(self, job: Candidate, outlook: Outlook | None = None) -> AdmissionPlan | None:
        """Return the plan in which the job starts, or room is made for it; None where neither is so, or
        where that cannot be told."""
        outlook = outlook or self.outlook
        if self.left <= 0 or not is_whole(outlook, job):
            return None
        ahead = list_ahead(outlook, job)
        holds = 3 * len(outlook.running) * min(MAX_HOLDERS, len(ahead))
        self.left -= 60 + 2 * len(outlook.hosts) + 5 * len(ahead) + holds
        plan = plan_once(outlook, [*ahead, job])
        started = any(each.job_id == job.job_id and not each.member for each in plan.placements)
        made = any(each.job_id == job.job_id for each in plan.preemptions)
        return plan if started or made else None

    def starts(self, job: Candidate, outlook: Outlook | None = None) -> bool:
        """Return whether the job starts at once, without a job being stopped for it."""
        plan = self.try_job(job, outlook)
        return plan is not None and any(
            each.job_id == job.job_id and not each.member for each in plan.placements
        )


def plan_once(outlook: Outlook, candidates: Sequence[Candidate]) -> AdmissionPlan:
    """Return the plan that admission would make of these jobs on the outlook."""
    plan = _call(outlook, candidates, running=False)
    return _call(outlook, candidates, running=True) if plan.needs_running else plan


def _call(outlook: Outlook, candidates: Sequence[Candidate], *, running: bool) -> AdmissionPlan:
    return plan_admission(
        candidates,
        outlook.hosts,
        outlook.headroom,
        outlook.quotas,
        shares=outlook.shares,
        running=outlook.running if running else None,
        hold_back_seconds=outlook.hold_back_seconds,
        lowest_preemptible=outlook.lowest_preemptible,
    )


def find_changes(
    outlook: Outlook, job: Candidate, queues: Sequence[str], *, paused: bool = False
) -> list[Change]:
    """Return the changes with which the job would start now, each by itself, at most `MAX_CHANGES`; none for
    a job that starts now as it is.

    queues: the names of the other queues that are open to it. paused: its own queue is paused, which the
    outlook does not know.
    """
    trials = _Trials(outlook)
    if trials.starts(job):
        if not paused:
            return []
        hint = f"holdfast queues resume {job.queue}"
        return [Change(what="resume", message=f"if queue {job.queue} were not paused", hint=hint)]
    if paused:
        return []
    found: list[Change] = []
    for look in (_try_limits, _try_size, _try_labels, _try_span):
        found += look(trials, job)
    found += _try_queues(trials, job, queues)
    found += _try_priority(trials, job)
    return found[:MAX_CHANGES]


def _try_limits(trials: _Trials, job: Candidate) -> Iterator[Change]:
    """Try the job without the limit of its queue, and without its project's quota."""
    outlook = trials.outlook
    queue, project = job.queue, job.project
    if queue in outlook.headroom:
        without = {name: left for name, left in outlook.headroom.items() if name != queue}
        if trials.starts(job, msgspec.structs.replace(outlook, headroom=without)):
            yield Change(
                what="max_running",
                message=f"if queue {queue} were allowed to run more jobs at once (max_running)",
                hint=f"holdfast queues set {queue} max_running=N",
            )
    quota = outlook.quotas.get(project)
    if quota is not None:
        free = {name: left for name, left in outlook.quotas.items() if name != project}
        starts = trials.starts(job, msgspec.structs.replace(outlook, quotas=free))
        if starts and quota.held:
            yield Change(
                what="budget",
                message=f"if project {project} had a larger budget for this month (budget_usd_per_month)",
                hint=f"holdfast projects set {project} budget_usd_per_month=N",
            )
        elif starts:
            which = "quota_jobs" if quota.jobs is not None and quota.jobs <= 0 else "quota_gpus"
            yield Change(
                what="quota",
                message=f"if project {project} had a larger quota ({which})",
                hint=f"holdfast projects set {project} {which}=N",
            )


def _try_size(trials: _Trials, job: Candidate) -> Iterator[Change]:
    """Try the largest smaller job that starts: fewer GPUs, fewer tasks, fewer CPU slots, less memory."""

    def largest(field: str, values: Sequence[int]) -> int | None:
        for value in values:
            if trials.starts(msgspec.structs.replace(job, **{field: value})):
                return value
        return None

    each = " a task" if job.tasks > 1 else ""
    if job.tasks > 1 and (tasks := _bisect(trials, job, "tasks", job.tasks)):
        yield Change(
            what="tasks",
            message=f"with {_count(tasks, 'task')} in place of {job.tasks}",
            hint=f"--tasks {tasks}",
        )
    if job.gpus > 1 and (gpus := _bisect(trials, job, "gpus", job.gpus)):
        yield Change(
            what="gpus",
            message=f"with {_count(gpus, 'GPU')}{each} in place of {job.gpus}",
            hint=f"--gpus {gpus}",
        )
    if job.cpu_slots > 1:
        free = sorted({h.free_cpu_slots for h in trials.outlook.hosts}, reverse=True)
        slots = [each for each in free if 0 < each < job.cpu_slots][:4]
        if cpus := largest("cpu_slots", slots):
            yield Change(
                what="cpus",
                message=f"with {_count(cpus, 'CPU slot')}{each} in place of {job.cpu_slots}",
                hint=f"--cpus {cpus}",
            )
    if job.memory_bytes > _GIB:
        room = sorted({h.free_memory_bytes // _GIB for h in trials.outlook.hosts}, reverse=True)
        sizes = [gib * _GIB for gib in room if 0 < gib * _GIB < job.memory_bytes][:4]
        if memory := largest("memory_bytes", sizes):
            yield Change(
                what="memory",
                message=f"with {memory // _GIB} GiB of memory{each} in place of "
                f"{job.memory_bytes / _GIB:.3g}",
                hint=f"--memory {memory // _GIB}G",
            )


def _bisect(trials: _Trials, job: Candidate, field: str, size: int) -> int:
    """Return the largest number below `size` with which the job starts; 0 for none. Every number that is
    returned was planned."""
    low, high = 0, size
    while high - low > 1:
        middle = (low + high) // 2
        if trials.starts(msgspec.structs.replace(job, **{field: middle})):
            low = middle
        else:
            high = middle
    return low


def _try_labels(trials: _Trials, job: Candidate) -> Iterator[Change]:
    """Try the job without each of the labels that its host must carry, and without all of them."""
    labels = dict(job.host_labels)
    found = False
    for name, value in sorted(labels.items()):
        less = {key: each for key, each in labels.items() if key != name}
        if trials.starts(msgspec.structs.replace(job, host_labels=less)):
            found = True
            yield Change(
                what="host_label",
                message=f"without the host label {name}={value}",
                hint=f"leave --host-label {name}={value} away",
            )
    if (
        len(labels) > 1
        and not found
        and trials.starts(msgspec.structs.replace(job, host_labels={}))
    ):
        yield Change(what="host_label", message="without its host labels")


def _try_span(trials: _Trials, job: Candidate) -> Iterator[Change]:
    """Try a shorter time limit: room that is held back for a larger job is given to a job that ends in
    time (ADMIT-4)."""
    now = job.span_seconds
    for seconds, words in SPANS:
        if now is not None and seconds >= now:
            continue
        if trials.starts(msgspec.structs.replace(job, time_limit_seconds=float(seconds))):
            yield Change(
                what="time_limit",
                message=f"with a time limit of {words} or less, in room that is held back for a larger job",
                hint=f"--time-limit {words}, or --expected {words} where it should take no longer",
            )
            return


def _try_queues(trials: _Trials, job: Candidate, queues: Sequence[str]) -> Iterator[Change]:
    for name in queues:
        if name != job.queue and trials.starts(msgspec.structs.replace(job, queue=name)):
            yield Change(what="queue", message=f"in queue {name}", hint=f"--queue {name}")
            return


def _try_priority(trials: _Trials, job: Candidate) -> Iterator[Change]:
    """Try the lowest higher priority with which the job comes early enough, or may stop others."""
    higher = {each.priority for each in trials.outlook.line if each.priority >= job.priority}
    higher |= {t.priority for t in trials.outlook.running if t.preemptible}
    tries = sorted({level + 1 for level in higher if job.priority <= level < 100})
    for priority in tries[:8]:
        plan = trials.try_job(msgspec.structs.replace(job, priority=priority))
        if plan is None:
            continue
        victims: Mapping[str, int] = {e.job_id: len(e.victims) for e in plan.preemptions}
        stops = victims.get(job.job_id, 0)
        after = f", once {_count(stops, 'running job')} had been stopped for it" if stops else ""
        yield Change(
            what="priority",
            message=f"with priority {priority} in place of {job.priority}{after}",
            hint=f"--priority {priority}",
            stops=stops,
        )
        return


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
