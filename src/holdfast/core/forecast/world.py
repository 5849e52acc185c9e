"""The room, the running jobs and the limits of one scenario, while it is replayed. Pure.

Hosts and jobs are those of an outlook; only numbers of devices are kept true, not which devices they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from zlib import crc32

import msgspec

from holdfast.core.forecast.outlook import Outlook
from holdfast.core.placement.holds import foretell_end
from holdfast.core.placement.types import (
    Candidate,
    Capacity,
    JobPlacement,
    QuotaLeft,
    RunningTask,
    Share,
    TaskPlacement,
)

SCENARIOS = 23
"""A prime, so that each job meets each of the parts of its spread once, in an order of its own."""


def part_of(job_id: str, scenario: int) -> float:
    """Return which part of its spread the job meets in a scenario, 0 < part < 1."""
    mark = crc32(job_id.encode())
    step, first = mark % (SCENARIOS - 1) + 1, mark // SCENARIOS
    return ((scenario * step + first) % SCENARIOS + 0.5) / SCENARIOS


class Live(msgspec.Struct):
    """A job that holds room. tasks: as they are when it begins, at `began_at`. ends_at: when it ends
    in this scenario. Both are in seconds from the outlook. told: the outlook has it."""

    job: Candidate
    tasks: Sequence[RunningTask]
    began_at: float
    ends_at: float
    draining: bool = False
    told: bool = False


class World:
    """One scenario's room and limits, which only the methods of this class change."""

    def __init__(self, outlook: Outlook) -> None:
        self.hosts = {host.host_id: host for host in outlook.hosts}
        self.lives: dict[str, Live] = {}
        self.headroom = dict(outlook.headroom)
        self.quotas = dict(outlook.quotas)
        self.shares = dict(outlook.shares)

    def add_host(self, capacity: Capacity) -> None:
        """Add a host that a pool brought."""
        self.hosts[capacity.host_id] = capacity

    def start(self, job: Candidate, placement: JobPlacement, at: float, ends_at: float) -> Live:
        """Let a placed job hold its room from `at` on."""
        tasks = [_begin(job, some) for some in placement.tasks]
        self._give(tasks, -1)
        key = job.job_id if job.member is None else f"{job.job_id}/{job.member}"
        live = self.lives[key] = Live(job, tasks, at, ends_at)
        if job.member is None:
            self._count(job, 1)
        return live

    def end(self, key: str) -> Live:
        """Give a job's room back."""
        live = self.lives.pop(key)
        self._give(live.tasks, 1)
        if live.job.member is None:
            self._count(live.job, -1)
        return live

    def _give(self, tasks: Sequence[RunningTask], sign: int) -> None:
        """Take the room of tasks from their hosts (-1), or give it back (1)."""
        for task in tasks:
            host = self.hosts.get(task.host_id)
            if host is not None:
                devices = len(host.free_devices) + sign * task.devices
                self.hosts[task.host_id] = msgspec.structs.replace(
                    host,
                    free_cpu_slots=host.free_cpu_slots + sign * task.cpu_slots,
                    free_memory_bytes=host.free_memory_bytes + sign * task.memory_bytes,
                    free_devices=tuple(range(devices)),
                )

    def list_room(self, least: tuple[int, int, int]) -> list[Capacity]:
        """Return the hosts with so many CPU slots, bytes of memory and devices free, at least."""
        cpu_slots, memory_bytes, devices = least
        return [
            host
            for host in self.hosts.values()
            if host.free_cpu_slots >= cpu_slots
            and len(host.free_devices) >= devices
            and host.free_memory_bytes >= memory_bytes
        ]

    def list_running(self, at: float) -> list[RunningTask]:
        """Return the tasks that hold room, as admission would read them at `at`."""
        return [task for live in self.lives.values() for task in _tell(live, at)]

    def _count(self, job: Candidate, sign: int) -> None:
        """Count a job that starts (1) or ends (-1) against its queue, its project and its share."""
        gpus, slots = job.gpus * job.tasks, job.cpu_slots * job.tasks
        if job.queue in self.headroom:
            self.headroom[job.queue] -= sign
        quota = self.quotas.get(job.project)
        if quota is not None and not quota.held:  # a held project starts none, also as jobs end
            self.quotas[job.project] = QuotaLeft(
                jobs=None if quota.jobs is None else quota.jobs - sign,
                gpus=None if quota.gpus is None else quota.gpus - sign * gpus,
            )
        share = self.shares.get(job.project)
        if share is not None:
            self.shares[job.project] = msgspec.structs.replace(
                share,
                held_gpus=share.held_gpus + sign * gpus,
                held_cpu_slots=share.held_cpu_slots + sign * (0 if gpus else slots),
            )
        elif self.shares:
            self.shares[job.project] = Share(
                held_gpus=sign * gpus, held_cpu_slots=sign * (0 if gpus else slots)
            )


def _begin(job: Candidate, placed: TaskPlacement) -> RunningTask:
    """Return the tasks of a job on one host, as one that begins."""
    return RunningTask(
        job_id=job.job_id,
        host_id=placed.host_id,
        project=job.project,
        priority=job.priority,
        devices=len(placed.devices),
        cpu_slots=job.cpu_slots * placed.count,
        memory_bytes=job.memory_bytes * placed.count,
        ran_seconds=0.0,
        queue=job.queue,
        kin=job.kin,
        time_limit_seconds=job.time_limit_seconds,
        expected_seconds=job.expected_seconds,
    )


def _tell(live: Live, at: float) -> Iterable[RunningTask]:
    for task in live.tasks:
        ran = task.ran_seconds + at - live.began_at
        ends, foretold = foretell_end(ran, task.time_limit_seconds, task.expected_seconds)
        yield msgspec.structs.replace(
            task,
            ran_seconds=ran,
            ends_in_seconds=ends,
            foretold=foretold,
            draining=task.draining or live.draining,
        )


def gather_lives(tasks: Sequence[RunningTask], left: Mapping[str, float]) -> list[Live]:
    """Return the running jobs. left: job id → the seconds that it still runs."""
    by_job: dict[str, list[RunningTask]] = {}
    for task in tasks:
        by_job.setdefault(task.job_id, []).append(task)
    return [
        Live(_as_candidate(own), own, 0.0, left[job_id], own[0].draining, told=True)
        for job_id, own in by_job.items()
    ]


def _as_candidate(tasks: Sequence[RunningTask]) -> Candidate:
    """Return the job of these tasks as a candidate, for when it is stopped and queued again."""
    first = tasks[0]
    return Candidate(
        job_id=first.job_id,
        epoch=first.epoch,
        queue=first.queue,
        project=first.project,
        priority=first.priority,
        tasks=len(tasks),
        gpus=first.devices,
        cpu_slots=first.cpu_slots,
        memory_bytes=first.memory_bytes,
        time_limit_seconds=first.time_limit_seconds,
        expected_seconds=first.expected_seconds,
        kin=first.kin,
    )
