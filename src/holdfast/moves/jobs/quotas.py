"""Quotas of projects: what a submission may add, and what may still start.

QUOTA-1  A hard quota counts all unfinished jobs and is checked under the project's lock, so that
         submissions which race cannot exceed it together. A job that alone is over its project's
         GPU quota is refused by a soft one too.
QUOTA-2  A job counts while it is reserved, running or draining, in a first attempt and a retry
         alike.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.placement.plan import QuotaLeft, Share
from holdfast.core.settings.resolve import Value, resolve
from holdfast.errors import QuotaExceeded

NAMES = ("quota_jobs", "quota_gpus")
SHARES = ("share_gpus", "share_cpu_slots")


class Quota(msgspec.Struct, frozen=True, kw_only=True):
    """A project's limits on unfinished jobs, where it is hard, and running ones. None: no limit."""

    hard: bool
    jobs: int | None
    gpus: int | None


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """A project's unfinished jobs and their GPUs, and of these the running ones (QUOTA-2).

    running_cpu_slots: of running jobs without GPUs.
    """

    jobs: int = 0
    gpus: int = 0
    running_jobs: int = 0
    running_gpus: int = 0
    running_cpu_slots: int = 0


def sets_quota(layer: Mapping[str, Value]) -> bool:
    """Whether a layer of settings limits anything."""
    return any(layer.get(name) is not None for name in NAMES)


def sets_share(layer: Mapping[str, Value]) -> bool:
    """Whether a layer of settings gives a share."""
    return any(layer.get(name) is not None for name in SHARES)


def read_share(
    own: Mapping[str, Value], below: Sequence[tuple[str, Mapping[str, Value]]], use: Use
) -> Share:
    """A project's share in force, `own` before the layers `below` it, and what its jobs hold."""
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
    """Return the projects below their shares with the GPUs and CPU slots that are left of them, and
    how many jobs of each are looked at in a queue of which `limit` are read."""
    left = {
        name: (s.gpus - s.held_gpus, s.cpu_slots - s.held_cpu_slots) for name, s in shares.items()
    }
    below = {name: rest for name, rest in left.items() if max(rest) > 0}
    return below, max(MIN_OF_PROJECT, limit // max(1, len(below)))


def read_quota(
    own: Mapping[str, Value], below: Sequence[tuple[str, Mapping[str, Value]]]
) -> Quota | None:
    """A project's quota in force, `own` before the layers `below` it; None where it has none."""
    layers = [("project", own), *below]
    jobs, gpus = (_count(resolve(name, layers).value) for name in NAMES)
    if jobs is None and gpus is None:
        return None
    return Quota(hard=resolve("quota", layers).value == "hard", jobs=jobs, gpus=gpus)


def _count(value: Value) -> int | None:
    return None if value is None else int(value)


def check_quota(project: str, quota: Quota, use: Use, asked: Sequence[int]) -> None:
    """Check that jobs may be added to `use`; each of `asked` is one job's GPUs over all its tasks.

    Raises:
        QuotaExceeded: with the quota, what is in use and what would fit.
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
    """Return which jobs may not be added to their projects, each after those before it, and why.

    asked: id, project and GPUs of each.
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
    """Return the rest of a quota. It may be negative, after a quota was lowered."""
    return QuotaLeft(
        jobs=None if quota.jobs is None else quota.jobs - use.running_jobs,
        gpus=None if quota.gpus is None else quota.gpus - use.running_gpus,
    )


class Allotment:
    """What projects may still start; accepted jobs are taken from it."""

    def __init__(self, left: Mapping[str, QuotaLeft]) -> None:
        self._left = dict(left)

    @property
    def left(self) -> Mapping[str, QuotaLeft]:
        """What each project with a quota may still start."""
        return self._left

    def allows(self, project: str, gpus: int) -> bool:
        """Whether the project's quota has room for one more job with `gpus` over all its tasks."""
        left = self._left.get(project)
        if left is None:
            return True
        enough = left.gpus is None or gpus == 0 or left.gpus >= gpus
        return enough and (left.jobs is None or left.jobs > 0)

    def take(self, project: str, gpus: int) -> None:
        """Take such a job."""
        left = self._left.get(project)
        if left is not None:
            self._left[project] = QuotaLeft(
                jobs=None if left.jobs is None else left.jobs - 1,
                gpus=None if left.gpus is None else left.gpus - gpus,
            )
