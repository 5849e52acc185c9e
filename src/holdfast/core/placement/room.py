"""Free room while an admission plan is made: which hosts a job fits on, and how many of its tasks.

Room only shrinks during a plan, so hosts found full for a shape of job are not looked at again. How
many tasks of a shape fit is counted once, by sorts of hosts, because a cluster has many hosts and
few sorts of them; from then on it is corrected by what is taken.

CACHE-2  Of the hosts on which a job fits, those are used where its caches are warm. A cold host is
         used when no warm one has room, so a cache never makes a job wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from holdfast.core.placement.eligible import is_eligible
from holdfast.core.placement.types import Candidate, Capacity, TaskPlacement
from holdfast.core.spec import MAX_TASKS

Shape = tuple[str, int, int, int, tuple[tuple[str, str], ...], tuple[str, ...], str]
Allowed = Callable[["HostRoom", Candidate, int], int]
"""(host, job, number of its tasks that fit there) → number that may be placed there, given the room
that is held back for other jobs."""
Chosen = list[tuple["HostRoom", int]]
"""Hosts, and the number of tasks of a job that go to each."""
Free = tuple[int, int, int]
"""(CPU slots, bytes of memory, devices)."""


def shape_of(job: Candidate) -> Shape:
    """Return the properties that decide where one task of a job fits."""
    return (
        job.queue,
        job.gpus,
        job.cpu_slots,
        job.memory_bytes,
        tuple(sorted(job.host_labels.items())) if job.host_labels else (),
        job.barred_hosts,
        job.runtime,
    )


class Kind:
    """Hosts that serve the same jobs. free: amount of free room → number of these hosts with it."""

    __slots__ = ("_capacity", "free")

    def __init__(self, capacity: Capacity) -> None:
        self._capacity = capacity
        self.free: Counter[Free] = Counter()

    def serves(self, job: Candidate) -> bool:
        """Return whether these hosts serve the job's queue, carry the labels it asks for and have
        its container runtime. A job may still bar some of them."""
        has = self._capacity
        return is_eligible(
            has, job.queue, job.host_labels, lacking=has.lacking, runtime=job.runtime
        )


class HostRoom:
    """The free room of one host while a plan is made. free: the same room as one tuple."""

    __slots__ = ("capacity", "cpu_slots", "devices", "free", "host_id", "kind", "memory_bytes")

    def __init__(self, capacity: Capacity, kind: Kind) -> None:
        self.capacity = capacity
        self.host_id = capacity.host_id
        self.kind = kind
        self.cpu_slots = capacity.free_cpu_slots
        self.memory_bytes = capacity.free_memory_bytes
        self.devices = list(capacity.free_devices)
        self.free: Free = self.cpu_slots, self.memory_bytes, len(self.devices)
        kind.free[self.free] += 1

    def amount(self) -> list[int]:
        """Return a copy of the free room to count with: [CPU slots, bytes of memory, devices]."""
        return list(self.free)

    def reserve_tasks(self, job: Candidate, tasks: int) -> list[tuple[int, ...]]:
        """Reserve the room of `tasks` tasks; return the devices of each, the lowest free ones."""
        alike = self.kind.free
        alike[self.free] -= 1
        taken: list[tuple[int, ...]] = [()] * tasks
        if job.gpus:
            ends = range(job.gpus, job.gpus * tasks + 1, job.gpus)
            taken = [tuple(self.devices[end - job.gpus : end]) for end in ends]
            del self.devices[: job.gpus * tasks]
        self.cpu_slots -= job.cpu_slots * tasks
        self.memory_bytes -= job.memory_bytes * tasks
        self.free = self.cpu_slots, self.memory_bytes, len(self.devices)
        alike[self.free] += 1
        return taken


def count_fitting(job: Candidate, room: Sequence[int], limit: int) -> int:
    """Return how many tasks of `job` fit into `room` (CPU slots, bytes of memory, devices), at most
    `limit`."""
    cpu_slots, memory_bytes, devices = room
    # Written without `min`, which would take as long as all the rest, because every job needs this.
    if job.cpu_slots and cpu_slots < job.cpu_slots * limit:
        limit = cpu_slots // job.cpu_slots
    if job.gpus and devices < job.gpus * limit:
        limit = devices // job.gpus
    if job.memory_bytes and memory_bytes < job.memory_bytes * limit:
        limit = memory_bytes // job.memory_bytes
    return limit if limit > 0 else 0


class _Serving:
    """The hosts that serve some shapes of jobs, and the number of tasks of these that fit on them.

    Shapes with the same needs on the same hosts share one `_Serving`, such as shapes of different
    queues that all hosts serve.
    """

    __slots__ = ("_job", "_kinds", "_seen", "_total", "hosts", "open")

    def __init__(self, job: Candidate, kinds: frozenset[Kind], room: Room) -> None:
        self._job = job
        self._kinds = kinds
        self.hosts = room.hosts
        if job.barred_hosts or len(self._kinds) < len(room.kinds):
            self.hosts = [host for host in room.hosts if self._has(host)]
        self.open: list[HostRoom] | None = None  # without those that are known to be full
        self._seen = len(room.taken)
        if job.barred_hosts:
            self._total = sum(count_fitting(job, host.free, MAX_TASKS) for host in self.hosts)
        else:
            self._total = sum(
                alike * count_fitting(job, free, MAX_TASKS)
                for kind in self._kinds
                for free, alike in kind.free.items()
                if alike
            )

    def _has(self, host: HostRoom) -> bool:
        return host.kind in self._kinds and host.host_id not in self._job.barred_hosts

    def count_fitting(self, room: Room) -> int:
        """Return how many tasks fit now, counted anew only where room was taken."""
        for host, before, after in room.taken[self._seen :]:
            if self._has(host):
                self._total += count_fitting(self._job, after, MAX_TASKS)
                self._total -= count_fitting(self._job, before, MAX_TASKS)
        self._seen = len(room.taken)
        return self._total


class Room:
    """All hosts' free room, the fullest first, so that large jobs keep finding some."""

    def __init__(self, hosts: Iterable[Capacity]) -> None:
        order = sorted(hosts, key=lambda c: (len(c.free_devices), c.free_cpu_slots, c.host_id))
        kinds: dict[object, Kind] = {}
        self.hosts = []
        for capacity in order:
            sort = _sort_of(capacity)
            kind = kinds.get(sort)
            if kind is None:
                kind = kinds[sort] = Kind(capacity)
            self.hosts.append(HostRoom(capacity, kind))
        self.kinds = list(kinds.values())
        self._serving: dict[Shape, _Serving] = {}
        self._needs: dict[object, _Serving] = {}
        self.taken: list[tuple[HostRoom, Free, Free]] = []
        """Hosts on which room was taken, in that order, with what was free before and after."""

    @property
    def version(self) -> int:
        """Return a number that grows whenever room is reserved."""
        return len(self.taken)

    @property
    def is_left(self) -> bool:
        """Return whether any host has a slot or a device free."""
        return any(host.cpu_slots > 0 or host.devices for host in self.hosts)

    def serving(self, job: Candidate) -> Sequence[HostRoom]:
        """Return the hosts that serve the job, whether they have room or not."""
        return self._find_serving(job).hosts

    def _find_serving(self, job: Candidate) -> _Serving:
        shape = shape_of(job)
        known = self._serving.get(shape)
        if known is None:
            kinds = frozenset(kind for kind in self.kinds if kind.serves(job))
            need = kinds, job.gpus, job.cpu_slots, job.memory_bytes, job.barred_hosts
            known = self._needs.get(need)
            if known is None:
                known = self._needs[need] = _Serving(job, kinds, self)
            self._serving[shape] = known
        return known

    def count_fitting(self, job: Candidate) -> int:
        """Return how many tasks of its shape fit now; this may be more than the job has."""
        return self._find_serving(job).count_fitting(self)

    def place(self, job: Candidate, allowed: Allowed) -> tuple[TaskPlacement, ...] | None:
        """Reserve room for all tasks or none (ADMIT-1), on avoided hosts last (ADMIT-3).

        Full hosts at the head of the shape's list are dropped from it for good.
        """
        serving, tasks = self._find_serving(job), job.tasks
        if serving.open is None:
            serving.open = list(serving.hosts)
        hosts = serving.open
        # `choose_hosts` would find the fullest host that takes all tasks; stop at that one.
        alone = not (job.avoid_hosts or job.caches) and (tasks == 1 or job.placement == "pack")
        fitting: list[tuple[int, HostRoom]] = []
        full = 0
        for at, host in enumerate(hosts):
            count = count_fitting(job, host.free, tasks)
            if not count:
                full += at == full
                continue
            count = allowed(host, job, count)
            if count == tasks and alone:
                del hosts[:full]
                return self._take(job, [(host, tasks)])
            if count:
                fitting.append((count, host))
        del hosts[:full]
        chosen = choose_hosts(job, fitting)
        return None if chosen is None else self._take(job, chosen)

    def _take(self, job: Candidate, chosen: Chosen) -> tuple[TaskPlacement, ...]:
        """Reserve the chosen room; ranks of one host follow each other, as torchrun numbers
        them."""
        tasks: list[TaskPlacement] = []
        rank = 0
        for host, count in chosen:
            before = host.free
            host_id, incarnation = host.host_id, host.capacity.incarnation
            taken = host.reserve_tasks(job, count)
            each = 1 if job.gpus else count
            for first, devices in enumerate(taken if job.gpus else taken[:1], rank):
                tasks.append(
                    TaskPlacement(
                        rank=first,
                        count=each,
                        host_id=host_id,
                        incarnation=incarnation,
                        devices=devices,
                    )
                )
            rank += count
            self.taken.append((host, before, host.free))
        return tuple(tasks)


def _sort_of(capacity: Capacity) -> object:
    """Return the properties that all hosts of one `Kind` share."""
    return capacity.queues, frozenset(capacity.labels.items()), capacity.lacking


def choose_hosts(job: Candidate, fitting: Sequence[tuple[int, HostRoom]]) -> Chosen | None:
    """Choose hosts for the tasks of a job, without taking room; None where they do not fit."""
    if sum(count for count, _ in fitting) < job.tasks:
        return None
    choose = choose_spread if job.placement == "spread" else choose_pack
    avoid = frozenset(job.avoid_hosts)
    liked = [(count, host) for count, host in fitting if host.host_id not in avoid]
    good = sum(count for count, _ in liked)
    if good >= job.tasks:
        return choose(job.tasks, _prefer_warm(job, liked) if job.caches else liked)
    avoided = [(count, host) for count, host in fitting if host.host_id in avoid]
    return [(host, count) for count, host in liked] + choose(job.tasks - good, avoided)


def _prefer_warm(
    job: Candidate, fitting: Sequence[tuple[int, HostRoom]]
) -> Sequence[tuple[int, HostRoom]]:
    """Return the hosts with the most of the job's caches, as many as it needs (CACHE-2)."""
    keys = job.cache_keys
    warm = {id(host): len(keys & host.capacity.caches) for _, host in fitting}
    for least in sorted(set(warm.values()), reverse=True):
        chosen = [(count, host) for count, host in fitting if warm[id(host)] >= least]
        if sum(count for count, _ in chosen) >= job.tasks:
            return chosen
    return fitting


def choose_pack(tasks: int, fitting: Sequence[tuple[int, HostRoom]]) -> Chosen:
    """Choose as few hosts as possible: the largest first, and for the rest the closest fit.

    fitting: (how many tasks fit, host), together at least `tasks`.
    """
    left = sorted(fitting, key=lambda f: f[0])  # stable: the fullest of equals first
    chosen: Chosen = []
    while tasks:
        if left[-1][0] < tasks:
            count, host = left.pop()
        else:
            _, host = left.pop(bisect_left(left, tasks, key=lambda f: f[0]))
            count = tasks
        chosen.append((host, count))
        tasks -= count
    return chosen


def choose_spread(tasks: int, fitting: Sequence[tuple[int, HostRoom]]) -> Chosen:
    """Choose as many hosts as possible: one task each, round by round, the emptiest first."""
    order = sorted(fitting, key=lambda f: -f[0])
    counts = [0] * len(order)
    while tasks:
        for i, (count, _) in enumerate(order):
            if tasks and counts[i] < count:
                counts[i] += 1
                tasks -= 1
    return [(host, taken) for (_, host), taken in zip(order, counts, strict=True) if taken]
