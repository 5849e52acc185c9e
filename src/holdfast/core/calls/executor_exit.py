"""Decide whether an executor leaves, so that its slot goes to another family or to a job. Pure.

LEAVE-1  An idle executor leaves when an executor of another family has waited for such a slot for
         longer than its placing takes, instead of waiting for its own idle time.
LEAVE-2  A busy one leaves after its calls in hand where that family has none at all and has waited
         for `YIELD_SECONDS`, unless it is the only one of its own.
LEAVE-3  Idle executors of a host leave for a job that would start in their room (a gang: in their
         room and on other hosts) and can start nowhere else now: as many of them as it needs.
LEAVE-4  Idle executors leave as well for a job that waits because they use up their queue's
         `max_running` or their project's quota, wherever that job would be placed.
"""

import heapq
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from holdfast.core.calls.executors import APP
from holdfast.core.placement.eligible import carries, serves
from holdfast.core.placement.plan import plan_admission
from holdfast.core.placement.types import Candidate, Capacity, QuotaLeft
from holdfast.core.spec import JobSpec

IDLE_YIELD_SECONDS = 3.0
YIELD_SECONDS = 30.0
YIELD_GAP_SECONDS = 10.0
"""Least time between two busy executors that leave, because several would leave for one slot."""


MAX_ROOMY = 64


class WantedSlot(msgspec.Struct, frozen=True, kw_only=True):
    """An executor that waits to be placed. gpus: GPUs that it needs. alone: its family has no
    executor that runs."""

    family: str
    host_labels: Mapping[str, str]
    queue: str
    gpus: int
    waited_seconds: float
    alone: bool


def list_claims(
    wanted: Iterable[WantedSlot],
    family: str,
    gpus: int,
    labels: Mapping[str, str],
    queues: Collection[str],
) -> list[WantedSlot]:
    """Return the waiting executors that could run in the slot of an executor.

    family, gpus: of the executor that may leave. labels, queues: the labels and queues of its host;
    no queues: the host serves all.
    """
    return [
        slot
        for slot in wanted
        if slot.family != family
        and (slot.gpus > 0) == (gpus > 0)
        and carries(labels, slot.host_labels)
        and serves(queues, slot.queue)
    ]


def yields_when_idle(claims: Collection[WantedSlot]) -> bool:
    """Return whether an idle executor leaves for one of `claims` (LEAVE-1)."""
    return any(c.waited_seconds > IDLE_YIELD_SECONDS for c in claims)


def yields_when_busy(claims: Collection[WantedSlot], running: int) -> bool:
    """Return whether a busy executor leaves for one of `claims` (LEAVE-2). running: number of
    running executors of its own family."""
    late = any(c.alone and c.waited_seconds > YIELD_SECONDS for c in claims)
    return late and running > 1


class Queues(msgspec.Struct, frozen=True, kw_only=True):
    """The queued jobs in their order, and the room that is free for them. roomy: the hosts with the
    most room, in which the other tasks of a gang are looked for."""

    candidates: Sequence[Candidate]
    hosts: Sequence[Capacity]
    headroom: Mapping[str, int]
    quotas: Mapping[str, QuotaLeft]
    roomy: Sequence[Capacity] = ()


def list_roomy(hosts: Iterable[Capacity]) -> list[Capacity]:
    """Return the hosts with the most free GPUs and slots, few enough to plan with them
    repeatedly."""
    return heapq.nlargest(MAX_ROOMY, hosts, lambda h: (len(h.free_devices), h.free_cpu_slots))


def find_waiting_jobs(queues: Queues) -> list[Candidate]:
    """Return the queued jobs, executors left out, that cannot start in the room that is free."""
    plan = plan_admission(queues.candidates, queues.hosts, queues.headroom, queues.quotas)
    starts = {placement.job_id for placement in plan.placements}
    return [
        job
        for job in queues.candidates
        if job.member is None
        and job.job_id not in starts
        and not any(name.startswith(APP) for name in job.host_labels)
    ]


def find_job_for_room(
    jobs: Iterable[Candidate],
    queues: Queues,
    host_id: str,
    spec: JobSpec,
    beside: Sequence[JobSpec] = (),
) -> tuple[str, int] | None:
    """Return the first job that would start if executors of the host left, and the number of
    executors that must leave (LEAVE-3).

    spec: the first executor to leave. beside: the host's other idle executors, which leave next.
    """
    host = next((host for host in queues.hosts if host.host_id == host_id), None)
    if host is None:
        return None
    # The host's room, and the limits, after one executor has left, after two, and so on.
    emptied = list(itertools.accumulate((spec, *beside), _without, initial=host))[1:]
    freed = list(itertools.accumulate((spec, *beside), _release, initial=queues))[1:]
    steps = list(zip(emptied, freed, strict=True))
    for job in jobs:
        limited = _is_limited(job, queues)
        if _starts(job, *steps[-1], limited=limited):
            count = next(n for n, s in enumerate(steps, 1) if _starts(job, *s, limited=limited))
            return job.job_id, count
    return None


def _starts(job: Candidate, host: Capacity, queues: Queues, *, limited: bool) -> bool:
    others = [other for other in queues.roomy if other.host_id != host.host_id]
    hosts = [host, *(others if job.tasks > 1 or limited else ())]
    return bool(plan_admission([job], hosts, queues.headroom, queues.quotas).placements)


def _is_limited(job: Candidate, queues: Queues) -> bool:
    """Return whether a limit of its queue or its project keeps a job from starting (LEAVE-4)."""
    quota = queues.quotas.get(job.project, QuotaLeft())
    gpus = job.gpus * job.tasks
    return (
        queues.headroom.get(job.queue, 1) <= 0
        or (quota.jobs is not None and quota.jobs <= 0)
        or (quota.gpus is not None and quota.gpus < gpus)
    )


def _release(queues: Queues, spec: JobSpec) -> Queues:
    """Return the queue's headroom and the project's quota as they are without one executor."""
    headroom, quotas = dict(queues.headroom), dict(queues.quotas)
    queue = spec.queue or ""
    if queue in headroom:
        headroom[queue] = max(0, headroom[queue]) + 1
    quota = quotas.get(spec.project)
    if quota is not None:
        quotas[spec.project] = QuotaLeft(
            jobs=None if quota.jobs is None else max(0, quota.jobs) + 1,
            gpus=None if quota.gpus is None else quota.gpus + spec.gpus,
            held=quota.held,
        )
    return msgspec.structs.replace(queues, headroom=headroom, quotas=quotas)


def _without(host: Capacity, spec: JobSpec) -> Capacity:
    """Return a host's free room as it is without one executor. The devices that it would free get
    made-up negative numbers, because only their count matters."""
    unnamed = min((0, *host.free_devices))
    return msgspec.structs.replace(
        host,
        free_cpu_slots=host.free_cpu_slots + spec.cpu_slots,
        free_memory_bytes=host.free_memory_bytes + spec.memory_bytes,
        free_devices=(*host.free_devices, *range(unnamed - spec.gpus, unnamed)),
    )
