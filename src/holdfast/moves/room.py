"""What is free on hosts, checked once more when a placement is written (ADMIT-2)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from holdfast.core.placement.plan import Candidate, Capacity, JobPlacement, TaskPlacement
from holdfast.moves.quotas import Allotment
from holdfast.moves.values import AdmissionSnapshot

Need = tuple[int, int, int]
"""(gpus, cpu_slots, memory_bytes) of one task."""


class RoomCheck:
    """Free room by host; taken from as placements are accepted."""

    def __init__(self, hosts: Iterable[Capacity]) -> None:
        self._hosts = {host.host_id: host for host in hosts}
        self._devices = {host_id: set(host.free_devices) for host_id, host in self._hosts.items()}
        self._slots = {host_id: host.free_cpu_slots for host_id, host in self._hosts.items()}
        self._memory = {host_id: host.free_memory_bytes for host_id, host in self._hosts.items()}

    def name(self, host_id: str) -> str:
        """Return the host's name."""
        return self._hosts[host_id].name

    def take(self, places: Sequence[TaskPlacement], need: Need) -> bool:
        """Take room for all tasks of a job or none: two leaders must not give one GPU twice."""
        gpus, slots, memory = need
        for done, some in enumerate(places):
            host = self._hosts.get(some.host_id)
            fits = (
                host is not None
                and host.incarnation == some.incarnation
                and len(some.devices) == gpus
                and (not gpus or self._frees(some))
                and self._slots[some.host_id] >= slots * some.count
                and (memory == 0 or self._memory[some.host_id] >= memory * some.count)
            )
            if not fits:
                for other in places[:done]:
                    self._devices[other.host_id].update(other.devices)
                    self._slots[other.host_id] += slots * other.count
                    self._memory[other.host_id] += memory * other.count
                return False
            self._devices[some.host_id].difference_update(some.devices)
            self._slots[some.host_id] -= slots * some.count
            self._memory[some.host_id] -= memory * some.count
        return True

    def _frees(self, some: TaskPlacement) -> bool:
        """Whether the devices are free, and of one rank."""
        return some.count == 1 and self._devices[some.host_id].issuperset(some.devices)


def plan_headroom(limits: Mapping[str, int | None], live: Mapping[str, int]) -> dict[str, int]:
    """Return queue → how many more jobs it may run, for queues that have a limit."""
    limited = [(name, limit) for name, limit in limits.items() if limit is not None]
    return {name: max(0, limit - live.get(name, 0)) for name, limit in limited}


def expect_starts(
    snapshot: AdmissionSnapshot, jobs: Iterable[Candidate], placements: Iterable[JobPlacement]
) -> AdmissionSnapshot:
    """Return the snapshot with what `placements` are to hold counted: their `jobs` are being
    reserved, and it was read without them. Jobs that are reserved already are then counted twice."""
    seats = {placement.job_id: placement.tasks for placement in placements}
    starts = [job for job in jobs if job.job_id in seats]
    slots: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    devices: dict[str, set[int]] = {}
    allotment, held = Allotment(snapshot.quotas), Counter[tuple[str, bool]]()
    for job in starts:
        allotment.take(job.project, job.gpus * job.tasks)
        held[job.project, job.gpus > 0] += (job.gpus or job.cpu_slots) * job.tasks
        for seat in seats[job.job_id]:
            slots[seat.host_id] += job.cpu_slots * seat.count
            memory[seat.host_id] += job.memory_bytes * seat.count
            if seat.devices:
                devices.setdefault(seat.host_id, set()).update(seat.devices)
    queues = Counter(job.queue for job in starts)
    return msgspec.structs.replace(
        snapshot,
        hosts=tuple(
            msgspec.structs.replace(
                host,
                free_cpu_slots=host.free_cpu_slots - slots[host.host_id],
                free_memory_bytes=host.free_memory_bytes - memory[host.host_id],
                free_devices=tuple(
                    d for d in host.free_devices if d not in devices.get(host.host_id, ())
                ),
            )
            if host.host_id in slots
            else host
            for host in snapshot.hosts
        ),
        headroom={name: max(0, left - queues[name]) for name, left in snapshot.headroom.items()},
        quotas=allotment.left,
        shares={
            name: msgspec.structs.replace(
                share,
                held_gpus=share.held_gpus + held[name, True],
                held_cpu_slots=share.held_cpu_slots + held[name, False],
            )
            for name, share in snapshot.shares.items()
        },
    )


def serves(hosts: Sequence[Capacity]) -> Callable[[str], bool]:
    """Return a predicate: whether any of `hosts` serves the queue of this name."""
    every = any(not host.queues for host in hosts)
    named = frozenset(name for host in hosts for name in host.queues)
    return lambda name: every or name in named
