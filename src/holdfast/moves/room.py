"""What is free on hosts, checked once more when a placement is written (ADMIT-2)."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple

import msgspec

from holdfast.core.placement.plan import Candidate, Capacity, JobPlacement, TaskPlacement
from holdfast.moves.quotas import Allotment
from holdfast.moves.values import AdmissionSnapshot

Need = tuple[int, int, int]
"""(gpus, cpu_slots, memory_bytes) of one task."""


class Stretch(NamedTuple):
    """Ranks of a job that follow each other on one host. devices: those of the rank, which is then
    alone."""

    host_id: str
    incarnation: str
    first: int
    tasks: int
    devices: tuple[int, ...]


_rank_of = attrgetter("rank")


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

    def take(self, stretches: Sequence[Stretch], need: Need) -> bool:
        """Take room for all tasks of a job or none: two leaders must not give one GPU twice."""
        gpus, slots, memory = need
        for done, some in enumerate(stretches):
            host = self._hosts.get(some.host_id)
            fits = (
                host is not None
                and host.incarnation == some.incarnation
                and len(some.devices) == gpus
                and (not gpus or self._devices[some.host_id].issuperset(some.devices))
                and self._slots[some.host_id] >= slots * some.tasks
                and (memory == 0 or self._memory[some.host_id] >= memory * some.tasks)
            )
            if not fits:
                for other in stretches[:done]:
                    self._devices[other.host_id].update(other.devices)
                    self._slots[other.host_id] += slots * other.tasks
                    self._memory[other.host_id] += memory * other.tasks
                return False
            self._devices[some.host_id].difference_update(some.devices)
            self._slots[some.host_id] -= slots * some.tasks
            self._memory[some.host_id] -= memory * some.tasks
        return True


def list_stretches(seats: Sequence[TaskPlacement]) -> list[Stretch]:
    """Return the ranks in order, those in a row on one host together."""
    found: list[Stretch] = []
    host_id, incarnation, first, tasks = "", "", 0, 0
    for seat in sorted(seats, key=_rank_of) if len(seats) > 1 else seats:
        if tasks and seat.host_id == host_id and seat.rank == first + tasks and not seat.devices:
            tasks += 1
            continue
        if tasks:
            found.append(Stretch(host_id, incarnation, first, tasks, ()))
        host_id, incarnation, first, tasks = seat.host_id, seat.incarnation, seat.rank, 1
        if seat.devices:
            found.append(Stretch(host_id, incarnation, first, 1, seat.devices))
            tasks = 0
    if tasks:
        found.append(Stretch(host_id, incarnation, first, tasks, ()))
    return found


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
            slots[seat.host_id] += job.cpu_slots
            memory[seat.host_id] += job.memory_bytes
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
            ).without_ahead
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
