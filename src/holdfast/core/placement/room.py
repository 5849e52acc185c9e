"""Free room while an admission plan is made: which hosts a job fits on, and how many of its tasks.

Room only shrinks during a plan, so hosts found full for a shape of job are not looked at again, and
how many tasks of a shape fit is counted anew only where room was taken.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from holdfast.core.placement.types import Candidate, Capacity, TaskPlacement
from holdfast.core.spec import MAX_TASKS

Shape = tuple[str, int, int, int, tuple[tuple[str, str], ...], tuple[str, ...], str]
Allowed = Callable[["HostRoom", Candidate, int], int]
"""(host, job, tasks that fit there) → how many of them may be placed there, what is held back for
others considered."""
Chosen = list[tuple["HostRoom", int]]
"""Hosts, and how many tasks of a job go to each."""


def shape_of(job: Candidate) -> Shape:
    """Return the properties that decide where one task of a job fits."""
    return (
        job.queue,
        job.gpus,
        job.cpu_slots,
        job.memory_bytes,
        tuple(sorted(job.host_labels.items())),
        job.barred_hosts,
        job.runtime,
    )


class HostRoom:
    """The free room of one host while a plan is made."""

    __slots__ = ("capacity", "cpu_slots", "devices", "memory_bytes")

    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.cpu_slots = capacity.free_cpu_slots
        self.memory_bytes = capacity.free_memory_bytes
        self.devices = list(capacity.free_devices)

    @property
    def host_id(self) -> str:
        """The host's id."""
        return self.capacity.host_id

    def amount(self) -> list[int]:
        """Return what is free: [CPU slots, bytes of memory, devices]."""
        return [self.cpu_slots, self.memory_bytes, len(self.devices)]

    def serves(self, job: Candidate) -> bool:
        """Return whether the host serves this shape's queue and carries the labels it asks for."""
        labels = self.capacity.labels
        if job.barred_hosts and self.host_id in job.barred_hosts:
            return False
        if job.runtime and job.runtime in self.capacity.lacking:
            return False
        return (not self.capacity.queues or job.queue in self.capacity.queues) and all(
            labels.get(name) == value for name, value in job.host_labels.items()
        )

    def count(self, job: Candidate, limit: int) -> int:
        """Return how many tasks of a job it serves fit, at most `limit`."""
        return count_fitting(job, (self.cpu_slots, self.memory_bytes, len(self.devices)), limit)

    def take(self, job: Candidate) -> tuple[int, ...]:
        """Take one task's room; the lowest free devices."""
        taken = tuple(self.devices[: job.gpus])
        del self.devices[: job.gpus]
        self.cpu_slots -= job.cpu_slots
        self.memory_bytes -= job.memory_bytes
        return taken


def count_fitting(job: Candidate, room: Sequence[int], limit: int) -> int:
    """How many tasks of `job` fit into (CPU slots, bytes of memory, devices), at most `limit`."""
    cpu_slots, memory_bytes, devices = room
    if job.cpu_slots:
        limit = min(limit, cpu_slots // job.cpu_slots)
    if job.gpus:
        limit = min(limit, devices // job.gpus)
    if job.memory_bytes:
        limit = min(limit, memory_bytes // job.memory_bytes)
    return max(0, limit)


class _Fitting:
    """How many tasks of one shape fit on each host, as far as `seen` of what was taken."""

    __slots__ = ("by_host", "seen", "total")

    def __init__(self, by_host: dict[str, int], seen: int) -> None:
        self.by_host = by_host
        self.total = sum(by_host.values())
        self.seen = seen

    def update(self, job: Candidate, taken: Sequence[HostRoom]) -> None:
        for host in {h.host_id: h for h in taken[self.seen :]}.values():
            before = self.by_host.get(host.host_id)
            if before is not None:
                now = self.by_host[host.host_id] = host.count(job, MAX_TASKS)
                self.total += now - before
        self.seen = len(taken)


class Room:
    """All hosts' free room, the fullest first, so that large jobs keep finding some."""

    def __init__(self, hosts: Iterable[Capacity]) -> None:
        order = sorted(hosts, key=lambda c: (len(c.free_devices), c.free_cpu_slots, c.host_id))
        self.hosts = [HostRoom(c) for c in order]
        self._open: dict[Shape, list[HostRoom]] = {}
        self._serving: dict[Shape, list[HostRoom]] = {}
        self._fitting: dict[Shape, _Fitting] = {}
        self._taken: list[HostRoom] = []
        """Hosts on which room was taken, in that order."""

    @property
    def version(self) -> int:
        """A number that grows whenever room is taken."""
        return len(self._taken)

    @property
    def is_left(self) -> bool:
        """Whether any host has a slot or a device free."""
        return any(host.cpu_slots > 0 or host.devices for host in self.hosts)

    def serving(self, job: Candidate) -> list[HostRoom]:
        """Hosts that serve the job, whether they have room or not."""
        shape = shape_of(job)
        known = self._serving.get(shape)
        if known is None:
            known = self._serving[shape] = [h for h in self.hosts if h.serves(job)]
        return known

    def count_fitting(self, job: Candidate) -> int:
        """Return how many tasks of the job fit now, or more where these are as many as it has.

        The counts are kept per shape; only hosts on which room was taken since are counted anew.
        """
        shape = shape_of(job)
        kept = self._fitting.get(shape)
        if kept is None:
            kept = self._fitting[shape] = _Fitting(
                {h.host_id: h.count(job, MAX_TASKS) for h in self.serving(job)}, len(self._taken)
            )
        kept.update(job, self._taken)
        return kept.total

    def place(self, job: Candidate, allowed: Allowed) -> tuple[TaskPlacement, ...] | None:
        """Take room for all tasks or none (ADMIT-1), on avoided hosts last (ADMIT-3).

        Full hosts at the head of the shape's list are dropped from it for good.
        """
        shape, tasks = shape_of(job), job.tasks
        hosts = self._open.get(shape)
        if hosts is None:
            hosts = self._open[shape] = list(self.serving(job))
        # `choose_hosts` would find the fullest host that takes all tasks; stop at that one.
        alone = not job.avoid_hosts and (tasks == 1 or job.placement == "pack")
        fitting: list[tuple[int, HostRoom]] = []
        full = 0
        for at, host in enumerate(hosts):
            count = host.count(job, tasks)
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
        """Ranks of one host follow each other, as torchrun numbers them."""
        tasks: list[TaskPlacement] = []
        for host, count in chosen:
            self._taken.append(host)
            where = {"host_id": host.host_id, "incarnation": host.capacity.incarnation}
            for _ in range(count):
                tasks.append(TaskPlacement(rank=len(tasks), devices=host.take(job), **where))
        return tuple(tasks)


def choose_hosts(job: Candidate, fitting: Sequence[tuple[int, HostRoom]]) -> Chosen | None:
    """Choose hosts for the tasks of a job, without taking room; None where they do not fit."""
    if sum(count for count, _ in fitting) < job.tasks:
        return None
    choose = choose_spread if job.placement == "spread" else choose_pack
    avoid = frozenset(job.avoid_hosts)
    liked = [(count, host) for count, host in fitting if host.host_id not in avoid]
    good = sum(count for count, _ in liked)
    if good >= job.tasks:
        return choose(job.tasks, liked)
    avoided = [(count, host) for count, host in fitting if host.host_id in avoid]
    return [(host, count) for count, host in liked] + choose(job.tasks - good, avoided)


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
    """As many hosts as possible: one task each, round by round, the emptiest first."""
    order = sorted(fitting, key=lambda f: -f[0])
    counts = [0] * len(order)
    while tasks:
        for i, (count, _) in enumerate(order):
            if tasks and counts[i] < count:
                counts[i] += 1
                tasks -= 1
    return [(host, taken) for (_, host), taken in zip(order, counts, strict=True) if taken]
