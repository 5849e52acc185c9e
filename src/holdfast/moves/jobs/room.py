"""The free room of hosts, checked once more when a placement is written (ADMIT-2)."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from holdfast.core.placement import eligible
from holdfast.core.placement.plan import Capacity, TaskPlacement

Need = tuple[int, int, int]
"""(gpus, cpu_slots, memory_bytes) of one task."""


class RoomCheck:
    """Free room by host, from which each accepted placement is subtracted."""

    def __init__(self, hosts: Iterable[Capacity]) -> None:
        self._hosts = {host.host_id: host for host in hosts}
        self._devices = {host_id: set(host.free_devices) for host_id, host in self._hosts.items()}
        self._slots = {host_id: host.free_cpu_slots for host_id, host in self._hosts.items()}
        self._memory = {host_id: host.free_memory_bytes for host_id, host in self._hosts.items()}

    def name(self, host_id: str) -> str:
        """Return the host's name."""
        return self._hosts[host_id].name

    def reserve_job(self, places: Sequence[TaskPlacement], need: Need) -> bool:
        """Reserve room for all tasks of a job or none, and return whether they fit, because two
        leaders must not place two tasks on one GPU."""
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
        """Return whether the devices of a placement are free, and belong to one rank."""
        return some.count == 1 and self._devices[some.host_id].issuperset(some.devices)


def plan_headroom(limits: Mapping[str, int | None], live: Mapping[str, int]) -> dict[str, int]:
    """Return queue → how many more jobs it may run, for queues that have a limit."""
    limited = [(name, limit) for name, limit in limits.items() if limit is not None]
    return {name: max(0, limit - live.get(name, 0)) for name, limit in limited}


def find_served(hosts: Sequence[Capacity]) -> Callable[[str], bool]:
    """Return a predicate: whether any of `hosts` serves the queue of this name."""
    kinds = {frozenset(host.queues) for host in hosts}
    return lambda name: any(eligible.serves(queues, name) for queues in kinds)
