"""The values of admission: jobs that wait, hosts with room, tasks that hold some, and the plan.

The collector of garbage looks through none of those that are many: they hold no circles.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.core.spec import JobSpec


class Capacity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What is free on one active host. `queues` empty: it serves every queue. lacking: container
    runtimes that cannot be used there now."""

    host_id: str
    name: str
    incarnation: str
    queues: frozenset[str]
    labels: Mapping[str, str] = {}
    free_cpu_slots: int
    free_memory_bytes: int
    free_devices: tuple[int, ...]
    lacking: frozenset[str] = frozenset()


Kin = tuple[str, str]
"""A project, and whose history in it tells how long a job takes (`find_kin`)."""
SPANS = 10
"""So many of the last jobs on record tell it."""


def find_kin(spec: JobSpec, array_id: str | None) -> str:
    """Return whose history tells how long a job takes: its array's or its name's; "" of none."""
    if spec.executor:
        return ""
    return f"array:{array_id}" if array_id is not None else spec.name or ""


def find_span(limit_seconds: float | None, expected_seconds: float | None) -> float | None:
    """Return how long an attempt takes, as far as that is known."""
    known = [each for each in (limit_seconds, expected_seconds) if each is not None]
    return min(known, default=None)


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A queued job as admission sees it, in the order it is to be considered.

    lease_ttl_seconds: the job's own, where its spec sets one; None goes by its queue's settings.
    waited_seconds: since it was queued.
    time_limit_seconds: of each attempt, None without one. A store gives the job's own: infinity
    where it is off, None where the spec is silent. expected_seconds: how long an attempt should take.
    A store gives the job's own; kin: whose history tells otherwise (`find_kin`).
    placement, host_labels: as in JobSpec. runtime: "" without an image, else the container runtime
    that it asks for, or `any`. barred_hosts: not used at all.
    member: the rank of a supervised job that waits for another host while the others run; its
    `tasks` is then 1, and it counts against no quota and no queue's limit, because its job does.
    supervised: its script may replace members, so it is never taken by a host itself (TAKE-1).
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
    barred_hosts: tuple[str, ...] = ()
    member: int | None = None
    lease_ttl_seconds: float | None = None
    waited_seconds: float = 0.0
    time_limit_seconds: float | None = None
    expected_seconds: float | None = None
    kin: str = ""
    placement: Literal["pack", "spread"] = "pack"
    host_labels: Mapping[str, str] = {}
    runtime: str = ""
    supervised: bool = False

    @property
    def span_seconds(self) -> float | None:
        """How long an attempt takes, as far as that is known: by its limit, or as expected."""
        return find_span(self.time_limit_seconds, self.expected_seconds)


class QuotaLeft(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs, and GPUs over all tasks, a project may still start. None: no limit."""

    jobs: int | None = None
    gpus: int | None = None


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A project's own GPUs and CPU slots, and what its live jobs hold.

    A job with GPUs counts by its GPUs alone, any other by its CPU slots.
    """

    gpus: int = 0
    cpu_slots: int = 0
    held_gpus: int = 0
    held_cpu_slots: int = 0


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The host of `count` ranks, which follow each other from `rank` on, and their devices; ranks
    that have devices stand each by itself."""

    rank: int
    count: int = 1
    host_id: str
    incarnation: str
    devices: tuple[int, ...]


class JobPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A job that starts now. `epoch` is the one of the snapshot: the guard of the write.

    queue, project, gpus, cpu_slots, memory_bytes: the candidate's, which are fixed within an epoch.
    member: it is one rank of a job that already runs. tasks: in the order of their ranks.
    """

    job_id: str
    epoch: int
    queue: str
    project: str
    gpus: int
    cpu_slots: int
    memory_bytes: int
    tasks: tuple[TaskPlacement, ...]
    member: bool = False

    @property
    def size(self) -> int:
        """How many ranks start."""
        return sum([some.count for some in self.tasks])

    def list_ranks(self) -> list[TaskPlacement]:
        """Return the place of each rank by itself."""
        return [
            msgspec.structs.replace(some, rank=rank, count=1)
            for some in self.tasks
            for rank in range(some.rank, some.rank + some.count)
        ]


def place_job(
    job: Candidate, tasks: tuple[TaskPlacement, ...], *, member: bool = False
) -> JobPlacement:
    """Return the placement of a candidate on these seats."""
    return JobPlacement(
        job_id=job.job_id,
        epoch=job.epoch,
        queue=job.queue,
        project=job.project,
        gpus=job.gpus,
        cpu_slots=job.cpu_slots,
        memory_bytes=job.memory_bytes,
        tasks=tasks,
        member=member,
    )


class RunningTask(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A task that holds room on a host, until when, and whether it may be preempted.

    time_limit_seconds, expected_seconds, kin: as in `Candidate`.
    ends_in_seconds: until its end, by its limit or as expected; None where neither is known. foretold:
    it is an expectation. draining: its job is being stopped.
    stoppable: its attempt has run for long enough, and its job would lose nothing but the work since
    its last checkpoint. preemptible: the same, and its job may be preempted.
    """

    job_id: str
    host_id: str
    project: str = "default"
    priority: int
    devices: int
    cpu_slots: int
    memory_bytes: int
    ran_seconds: float
    epoch: int = 0
    queue: str = ""
    time_limit_seconds: float | None = None
    expected_seconds: float | None = None
    kin: str = ""
    ends_in_seconds: float | None = None
    foretold: bool = False
    draining: bool = False
    stoppable: bool = False
    preemptible: bool = False


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to stop so that `job_id` can start: few, unimportant and young ones.

    reclaims: they give back what their projects borrowed, because `project` asks for its share.
    """

    job_id: str
    priority: int
    victims: tuple[str, ...]
    project: str = "default"
    reclaims: bool = False


class AdmissionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The placements, and for every other job that was looked at, the reason.

    needs_running: a job was passed over, or could preempt: plan again, with the tasks that run.
    room_left: some host has a slot or a device free after all this. holds: room is held back for a
    job, or is being made for one, or would be held back if another came next.
    """

    placements: tuple[JobPlacement, ...]
    refusals: Mapping[str, str]
    preemptions: tuple[Preemption, ...] = ()
    needs_running: bool = False
    room_left: bool = False
    holds: bool = False
