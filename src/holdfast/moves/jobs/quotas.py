"""Quotas of projects: the jobs that a submission may add, and those that may still start.

QUOTA-1  A hard quota counts all unfinished jobs and is checked under the project's lock, so that
         submissions which race cannot exceed it together. A soft quota, too, refuses a job that
         alone needs more GPUs than its project's quota.
QUOTA-2  A job counts while it is reserved, running or draining, in a first attempt and a retry
         alike.
QUOTA-3  A project whose month's budget is spent, and that is to be held then, has no room for another
         job, while its running jobs and its submissions go on.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.placement.plan import QuotaLeft, Share
from holdfast.core.settings.resolve import Value, resolve
from holdfast.errors import QuotaExceeded

NAMES = ("quota_jobs", "quota_gpus")
SHARES = ("share_gpus", "share_cpu_slots")


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A project's limits on running jobs and their GPUs; a hard quota limits unfinished jobs too.
    None: no limit. held: why no job of the project may start now, "" where jobs may (QUOTA-3)."""

    hard: bool
    jobs: int | None
    gpus: int | None
    held: str = ""


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The use of a project's quota. jobs, gpus: unfinished jobs and their GPUs. running_jobs,
    running_gpus: the same of running jobs (QUOTA-2). running_cpu_slots: CPU slots of running jobs
    without GPUs.
    """

    jobs: int = 0
    gpus: int = 0
    running_jobs: int = 0
    running_gpus: int = 0
    running_cpu_slots: int = 0


def sets_quota(layer: Mapping[str, Value]) -> bool:
    """Return whether a layer of settings sets a quota, or lets a spent budget hold jobs
    (QUOTA-3)."""
    limited = any(layer.get(name) is not None for name in NAMES)
    return limited or layer.get("at_budget") not in (None, "notice")


def sets_share(layer: Mapping[str, Value]) -> bool:
    """Return whether a layer of settings sets a share."""
    return any(layer.get(name) is not None for name in SHARES)


def read_share(
    own: Mapping[str, Value], below: Sequence[tuple[str, Mapping[str, Value]]], use: Use
) -> Share:
    """Return a project's share in force, and its use. own: the project's settings, which go before
    the layers `below`."""
    layers = [("project", own), *below]
    gpus, cpu_slots = (_count(resolve(name, layers).value) or 0 for name in SHARES)
    return Share(
        gpus=gpus,
        cpu_slots=cpu_slots,
        held_gpus=use.running_gpus,
        held_cpu_slots=use.running_cpu_slots,
    )


MIN_OF_PROJECT = 16


def plan_owned(shares: Mapping[str, Share], limit: int) -> tuple[dict[str, tuple[int, int]], int]:
    """Return project → (GPUs, CPU slots) that are left of its share, for projects below their
    share, and the number of jobs to read of each in a queue, where `limit` jobs are read of the
    queue."""
    left = {
        name: (s.gpus - s.held_gpus, s.cpu_slots - s.held_cpu_slots) for name, s in shares.items()
    }
    below = {name: rest for name, rest in left.items() if max(rest) > 0}
    return below, max(MIN_OF_PROJECT, limit // max(1, len(below)))


def read_quota(
    own: Mapping[str, Value], below: Sequence[tuple[str, Mapping[str, Value]]], held: str = ""
) -> Quota | None:
    """Return a project's quota in force, or None. own: the project's settings, which go before the
    layers `below`. held: as in `Quota`."""
    layers = [("project", own), *below]
    jobs, gpus = (_count(resolve(name, layers).value) for name in NAMES)
    if jobs is None and gpus is None and not held:
        return None
    hard = resolve("quota", layers).value == "hard"
    return Quota(hard=hard, jobs=jobs, gpus=gpus, held=held)


def _count(value: Value) -> int | None:
    return None if value is None else int(value)


def check_quota(project: str, quota: Quota, use: Use, asked: Sequence[int]) -> None:
    """Check that jobs may be added to `use`; each of `asked` is one job's GPUs over all its tasks.

    Raises:
        QuotaExceeded: names the quota, its use and the size that would fit.
    """
    largest, gpus = max(asked, default=0), sum(asked)
    if quota.gpus is not None and largest > quota.gpus:
        never = f"a job of {largest} GPU{'s' * (largest != 1)} can never start in project {project}"
        most = f"which may hold {quota.gpus} at once (quota_gpus)"
        hint = "ask for fewer, or have the quota raised"
        raise QuotaExceeded(f"{never}, {most}; {hint}", field="gpus")
    if not quota.hard or not asked:
        return
    if quota.jobs is not None and use.jobs + len(asked) > quota.jobs:
        most = f"project {project} may have {quota.jobs} unfinished job{'s' * (quota.jobs != 1)} (quota_jobs)"
        room = f"{use.jobs}, so {max(0, quota.jobs - use.jobs)} more would fit"
        raise QuotaExceeded(f"{most}; it has {room}, and this adds {len(asked)}", field="project")
    if quota.gpus is not None and gpus and use.gpus + gpus > quota.gpus:
        whose = f"unfinished jobs of project {project}"
        most = (
            f"{whose} may ask for {quota.gpus} GPU{'s' * (quota.gpus != 1)} together (quota_gpus)"
        )
        room = f"{use.gpus}, so {max(0, quota.gpus - use.gpus)} more would fit"
        raise QuotaExceeded(f"{most}; they ask for {room}, and this adds {gpus}", field="project")


def find_refused(
    limits: Mapping[str, tuple[Quota, Use]], asked: Sequence[tuple[str, str, int]]
) -> dict[str, QuotaExceeded]:
    """Return job id → why it may not be added to its project, counting the jobs before it.

    asked: (id, project, GPUs) of each job.
    """
    refused: dict[str, QuotaExceeded] = {}
    uses = {project: use for project, (_, use) in limits.items()}
    for job_id, project, gpus in asked:
        if project not in limits:
            continue
        use = uses[project]
        try:
            check_quota(project, limits[project][0], use, [gpus])
        except QuotaExceeded as error:
            refused[job_id] = error
        else:
            uses[project] = msgspec.structs.replace(use, jobs=use.jobs + 1, gpus=use.gpus + gpus)
    return refused


def quota_left(quota: Quota, use: Use) -> QuotaLeft:
    """Return the rest of a quota, which is negative where the quota was lowered below the present
    use."""
    if quota.held:
        return QuotaLeft(jobs=0, held=quota.held)
    return QuotaLeft(
        jobs=None if quota.jobs is None else quota.jobs - use.running_jobs,
        gpus=None if quota.gpus is None else quota.gpus - use.running_gpus,
    )


class Allotment:
    """The quotas that projects have left; each accepted job is subtracted."""

    def __init__(self, left: Mapping[str, QuotaLeft]) -> None:
        self._left = dict(left)

    @property
    def left(self) -> Mapping[str, QuotaLeft]:
        """Return the rest of each project's quota, for projects that have one."""
        return self._left

    def allows(self, project: str, gpus: int) -> bool:
        """Return whether the project's quota has room for a job with `gpus` over all its tasks."""
        left = self._left.get(project)
        if left is None:
            return True
        enough = left.gpus is None or gpus == 0 or left.gpus >= gpus
        return enough and (left.jobs is None or left.jobs > 0)

    def subtract_job(self, project: str, gpus: int) -> None:
        """Subtract an accepted job from the rest of its project's quota."""
        left = self._left.get(project)
        if left is not None:
            self._left[project] = QuotaLeft(
                jobs=None if left.jobs is None else left.jobs - 1,
                gpus=None if left.gpus is None else left.gpus - gpus,
                held=left.held,
            )
