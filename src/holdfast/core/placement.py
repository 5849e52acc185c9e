"""plan_admission(…): which queued jobs start now, and where. Pure.

ADMIT-1  A job gets all of its tasks placed or none (gangs and single jobs alike).
ADMIT-2  A task's devices and slots are free, by live leases, at the moment of the snapshot; the store applies a
         placement only where the job is still queued under the same epoch and the hosts still active, in one transaction.
ADMIT-3  A host that a job avoids is used only when no other has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.core.gpus import Gpu


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What is free on one active host. `queues` empty: it serves every lane."""

    host_id: str
    name: str
    incarnation: str
    queues: frozenset[str]
    free_cpu_slots: int
    free_memory_bytes: int
    free_devices: tuple[int, ...]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A queued job as admission sees it, in the order it is to be considered.

    lease_ttl_seconds: the job's own, where its spec sets one; None goes by its queue.
    """

    job_id: str
    epoch: int
    queue: str
    project: str = "default"
    priority: int
    tasks: int
    gpus: int
    cpu_slots: int
    memory_bytes: int
    avoid_hosts: tuple[str, ...] = ()
    lease_ttl_seconds: float | None = None


class QuotaLeft(msgspec.Struct, frozen=True, kw_only=True):
    """What a project may still start: jobs, and GPUs over all tasks. None: no limit of that kind."""

    jobs: int | None = None
    gpus: int | None = None


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's host and devices."""

    rank: int
    host_id: str
    incarnation: str
    devices: tuple[int, ...]


class JobPlacement(msgspec.Struct, frozen=True, kw_only=True):
    """A job that starts now. `epoch` is the one it had in the snapshot: the guard of the write."""

    job_id: str
    epoch: int
    tasks: tuple[TaskPlacement, ...]


class AdmissionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What admission decided: who starts, and for everyone else looked at, why not."""

    placements: tuple[JobPlacement, ...]
    refusals: Mapping[str, str]


class _Free:
    """The free room of one host while a plan is made."""

    __slots__ = ("capacity", "cpu_slots", "devices", "memory_bytes")

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.cpu_slots = capacity.free_cpu_slots
        self.memory_bytes = capacity.free_memory_bytes
        self.devices = list(capacity.free_devices)

    def fits(self, job: Candidate) -> bool:
        return (
            self.cpu_slots >= job.cpu_slots
            and len(self.devices) >= job.gpus
            and (job.memory_bytes == 0 or self.memory_bytes >= job.memory_bytes)
            and (not self.capacity.queues or job.queue in self.capacity.queues)
        )

    def take(self, job: Candidate) -> tuple[int, ...]:
        taken = tuple(self.devices[: job.gpus])
        del self.devices[: job.gpus]
        self.cpu_slots -= job.cpu_slots
        self.memory_bytes -= job.memory_bytes
        return taken

    def give_back(self, job: Candidate, devices: tuple[int, ...]) -> None:
        self.devices = sorted([*devices, *self.devices])
        self.cpu_slots += job.cpu_slots
        self.memory_bytes += job.memory_bytes


class _Quotas:
    """What projects may still start while a plan is made."""

    def __init__(self, quotas: Mapping[str, QuotaLeft]) -> None:
        self._jobs = {name: q.jobs for name, q in quotas.items() if q.jobs is not None}
        self._gpus = {name: q.gpus for name, q in quotas.items() if q.gpus is not None}

    def refuse(self, job: Candidate) -> str | None:
        if self._jobs.get(job.project, 1) <= 0:
            return f"project {job.project} already runs as many jobs as it may (quota_jobs)"
        gpus = job.gpus * job.tasks
        if gpus and self._gpus.get(job.project, gpus) < gpus:
            return f"project {job.project} has {max(0, self._gpus[job.project])} GPUs of its quota left, and it needs {gpus} (quota_gpus)"
        return None

    def take(self, job: Candidate) -> None:
        if job.project in self._jobs:
            self._jobs[job.project] -= 1
        if job.project in self._gpus:
            self._gpus[job.project] -= job.gpus * job.tasks


def plan_admission(
    candidates: Iterable[Candidate],
    hosts: Sequence[Capacity],
    headroom: Mapping[str, int],
    quotas: Mapping[str, QuotaLeft] = MappingProxyType({}),
) -> AdmissionPlan:
    """Place `candidates` in their order; the fullest host that fits is taken first, so that large jobs keep finding room.

    headroom: how many more jobs each queue may run at once; a queue that is missing has no limit.
    quotas: the same for projects, in jobs and GPUs (QUOTA-2: a retried attempt counts like any other).
    """
    free = [_Free(c) for c in sorted(hosts, key=lambda c: (len(c.free_devices), c.free_cpu_slots, c.host_id))]
    left = dict(headroom)
    budgets = _Quotas(quotas)
    placements: list[JobPlacement] = []
    refusals: dict[str, str] = {}
    full: set[tuple[str, int, int, int]] = set()  # shapes that found no room: room only shrinks while planning
    for job in candidates:
        if left.get(job.queue, 1) <= 0:
            refusals[job.job_id] = f"queue {job.queue} already runs as many jobs as it may (max_running)"
            continue
        over = budgets.refuse(job)
        if over is not None:
            refusals[job.job_id] = over
            continue
        shape = (job.queue, job.gpus, job.cpu_slots, job.memory_bytes)
        placed = None if shape in full else _place(job, free)
        if placed is None:
            if job.tasks == 1:
                full.add(shape)
            refusals[job.job_id] = f"no host has {describe_need(job)} free for queue {job.queue} now"
            continue
        placements.append(JobPlacement(job_id=job.job_id, epoch=job.epoch, tasks=tuple(placed)))
        if job.queue in left:
            left[job.queue] -= 1
        budgets.take(job)
    return AdmissionPlan(placements=tuple(placements), refusals=refusals)


def _place(job: Candidate, free: list[_Free]) -> list[TaskPlacement] | None:
    """Place all tasks of one job or none (ADMIT-1), avoided hosts last (ADMIT-3)."""
    order = free
    if job.avoid_hosts:
        order = sorted(free, key=lambda f: f.capacity.host_id in job.avoid_hosts)
    taken: list[tuple[_Free, tuple[int, ...]]] = []
    for room in order:
        while len(taken) < job.tasks and room.fits(job):
            taken.append((room, room.take(job)))
        if len(taken) == job.tasks:
            return [
                TaskPlacement(
                    rank=rank,
                    host_id=room.capacity.host_id,
                    incarnation=room.capacity.incarnation,
                    devices=devices,
                )
                for rank, (room, devices) in enumerate(taken)
            ]
    for room, devices in taken:
        room.give_back(job, devices)
    return None


def describe_need(job: Candidate) -> str:
    """The resources one task needs, in words."""
    parts = [f"{job.gpus} GPU{'s' * (job.gpus != 1)}"] if job.gpus else []
    if job.cpu_slots:
        parts.append(f"{job.cpu_slots} CPU slot{'s' * (job.cpu_slots != 1)}")
    if job.memory_bytes:
        parts.append(f"{job.memory_bytes / 2**30:.3g} GiB of memory")
    need = " and ".join(parts) or "a slot"
    return need if job.tasks == 1 else f"{need} for each of {job.tasks} tasks"


class Size(msgspec.Struct, frozen=True, kw_only=True):
    """A host's whole size, busy or not: what `find_impossible` compares with."""

    name: str
    queues: frozenset[str]
    cpu_slots: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]


def find_impossible(job: Candidate, sizes: Sequence[Size]) -> str | None:
    """Return why no host there is could ever run one task of `job`, or None when one could, or none is known yet."""
    serving = [s for s in sizes if not s.queues or job.queue in s.queues]
    if not serving:
        return None  # nobody serves the lane *yet*; `why` says so while the job waits
    for size in serving:
        enough_memory = job.memory_bytes == 0 or size.memory_bytes >= job.memory_bytes
        if size.cpu_slots >= job.cpu_slots and len(size.gpus) >= job.gpus and enough_memory:
            return None
    return (
        f"no host that serves queue {job.queue} could ever run it: it needs {describe_need(job)}, and the largest have "
        f"{max(len(s.gpus) for s in serving)} GPUs, {max(s.cpu_slots for s in serving)} CPU slots and "
        f"{max(s.memory_bytes for s in serving) / 2**30:.3g} GiB of memory"
    )


def silence_seconds(dead_host_seconds: float, sync_interval_seconds: float) -> float:
    """How long a host may be silent and still be given work.

    Two missed syncs and a little: a lease may be shorter than the time after which a host is called dead, and a job that
    just lapsed there must not be reserved on the same silent host again.
    """
    return min(dead_host_seconds, 2 * sync_interval_seconds + 2.0)
