"""The values of admission: jobs that wait, hosts with room, tasks that hold some, and the plan.

Values that exist in large numbers are not tracked by the garbage collector (`gc=False`), because
they hold no reference cycles.
"""

from collections.abc import Mapping
from typing import Literal

import msgspec

from holdfast.core.data.named import list_cache_keys
from holdfast.core.spec import JobSpec


class Capacity(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The free room of one active host. queues: the queues that it serves, empty for all. lacking:
    container runtimes that cannot be used there now. caches: keys of the caches that are warm there
    (CACHE-1)."""

    host_id: str
    name: str
    incarnation: str
    queues: frozenset[str]
    labels: Mapping[str, str] = {}
    free_cpu_slots: int
    free_memory_bytes: int
    free_devices: tuple[int, ...]
    lacking: frozenset[str] = frozenset()
    caches: frozenset[str] = frozenset()


Kin = tuple[str, str]
"""A project, and the array or name within it whose past jobs tell how long a job takes
(`find_kin`)."""
SPANS = 10
"""Number of past jobs of one kin from which the expected duration is computed."""


def find_kin(spec: JobSpec, array_id: str | None) -> str:
    """Return the array or the name whose past jobs tell how long a job takes; "" for neither."""
    if spec.executor:
        return ""
    return f"array:{array_id}" if array_id is not None else spec.name or ""


def find_span(limit_seconds: float | None, expected_seconds: float | None) -> float | None:
    """Return how long an attempt takes at most, by its limit or as expected; None: not known."""
    known = [each for each in (limit_seconds, expected_seconds) if each is not None]
    return min(known, default=None)


class Candidate(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A queued job as admission sees it, in the order it is to be considered.

    gpus, cpu_slots, memory_bytes: needs of one task. avoid_hosts: hosts to use last (ADMIT-3);
    barred_hosts: hosts not to use at all. placement, host_labels: as in JobSpec. runtime: the
    container runtime that it needs, or `any`; "" without an image.
    lease_ttl_seconds: set by the job's spec; None: the queue's setting holds. waited_seconds: time
    since it was queued. time_limit_seconds: limit of each attempt, None without one; as a store
    reads it, infinity where the spec turns it off and None where the spec is silent.
    expected_seconds: how long an attempt should take, as the spec says; where the spec is silent,
    the past jobs of `kin` tell (`find_kin`).
    member: the rank of a supervised job that waits for another host while the other ranks run; its
    `tasks` is then 1, and it counts against no quota and no queue's limit, because its job does.
    supervised: a policy script may replace its members, so hosts never take it (TAKE-1). caches: as
    in JobSpec.
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
    caches: tuple[str, ...] = ()

    @property
    def cache_keys(self) -> frozenset[str]:
        """Return the keys of its caches, which hosts report once they are warm (CACHE-2)."""
        return list_cache_keys(self.project, self.caches) if self.caches else frozenset()

    @property
    def span_seconds(self) -> float | None:
        """Return how long an attempt takes, by its limit or as expected; None: not known."""
        return find_span(self.time_limit_seconds, self.expected_seconds)


class QuotaLeft(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs, and the GPUs over all tasks, that a project may still start. None: no limit. held: why
    it may start none, even where others end (QUOTA-3); "" where it may."""

    jobs: int | None = None
    gpus: int | None = None
    held: str = ""


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """A project's own GPUs and CPU slots, and what its live jobs hold.

    A job with GPUs counts by its GPUs alone, any other by its CPU slots.
    """

    gpus: int = 0
    cpu_slots: int = 0
    held_gpus: int = 0
    held_cpu_slots: int = 0


class TaskPlacement(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The host of `count` ranks from `rank` on, and their devices; each rank with devices has a
    placement of its own."""

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
        """Return how many ranks start."""
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
    """Return the placement of a candidate on the hosts of `tasks`."""
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
    """A task that holds room on a host.

    devices: number of its GPUs. ran_seconds: how long its attempt has run. time_limit_seconds,
    expected_seconds, kin: as in `Candidate`. ends_in_seconds: time until its end, by its limit or
    as expected; None: not known. foretold: that end is an expectation only. draining: its job is
    being stopped. notice_left_seconds: how long it then still has to save, at most; None where it has
    its grace alone. stoppable: its attempt has run long enough, and its job would lose only the work
    since its last checkpoint. preemptible: it is stoppable, and its job may be preempted.
    min_run_seconds: how long an attempt of its job runs at least before it may be stopped for
    another, where its spec says so. saved_seconds: how long ago the checkpoint was on record from
    which every rank of its job would go on (the oldest of the ranks' newest ones); None where none
    is. saved_step: that checkpoint's step. broken: how many attempts of the job began below the
    step of the checkpoint that they were given.
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
    notice_left_seconds: float | None = None
    stoppable: bool = False
    preemptible: bool = False
    min_run_seconds: float | None = None
    saved_seconds: float | None = None
    saved_step: int | None = None
    broken: int = 0


class Preemption(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to stop so that `job_id` can start: unimportant ones that lose little work.

    priority, project: those of `job_id`. victims: ids of the jobs to stop. reclaims: the victims
    give back what their projects borrowed, because `project` needs its share.
    """

    job_id: str
    priority: int
    victims: tuple[str, ...]
    project: str = "default"
    reclaims: bool = False


class AdmissionPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a round of admission. refusals: job id → why it does not start.

    needs_running: plan again with the running tasks, because a job was passed over or could
    preempt. room_left: some host has a slot or a device free after the placements. holds: room is
    held back or is being made for a job, or would be held back for the next one.
    """

    placements: tuple[JobPlacement, ...]
    refusals: Mapping[str, str]
    preemptions: tuple[Preemption, ...] = ()
    needs_running: bool = False
    room_left: bool = False
    holds: bool = False
