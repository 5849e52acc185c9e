"""Count the executors of a family that would fit on the hosts that list its app. Pure."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from holdfast.core.calls.executors import list_labels, make_executor_spec
from holdfast.core.calls.plan import FamilyRoom
from holdfast.core.calls.values import Family
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.placement.eligible import carries, is_eligible, serves
from holdfast.core.records import HostRecord
from holdfast.core.states import HostState

GIB = 1 << 30
MOST_ON_A_HOST = 64
"""Most executors of one family on a host where they need neither a slot nor a device."""


def list_hosts_of(family: Family, hosts: Iterable[HostRecord]) -> Iterator[HostRecord]:
    """Yield the live hosts that list the family's app, carry its labels and serve its queue."""
    wanted = list_labels(family)
    for host in hosts:
        takes = host.state is HostState.ACTIVE and host.flagged_dead_at is None
        if takes and serves(host.queues, family.queue) and carries(host.able_labels, wanted):
            yield host


def find_room(
    family: Family, hosts: Sequence[HostRecord], pools: Sequence[PoolSpec], most: int | None
) -> FamilyRoom:
    """Return the family's room on the present hosts and on the hosts that pools may rent."""
    slots = [_count_on(family, host) for host in list_hosts_of(family, hosts)]
    wanted = list_labels(family)
    rented = [
        math.floor(pool.max * pool.jobs_per_host)
        for pool in pools
        if is_eligible(pool, family.queue, wanted)
    ]
    return FamilyRoom(slots=sum(slots) + sum(rented), listed=bool(slots or rented), most=most)


def count_beside(
    family: Family, hosts: Iterable[HostRecord], pools: Sequence[PoolSpec], held: Mapping[str, int]
) -> int:
    """Return how many executors of a family with GPUs would fit beside the GPUs that are in use,
    if nothing else ran. held: number of used GPUs by host id."""
    beside = sum((len(host.gpus) - held.get(host.id, 0)) // family.gpus for host in hosts)
    return max(0, beside) + find_room(family, [], pools, None).slots


def _count_on(family: Family, host: HostRecord) -> int:
    spec = make_executor_spec(family)
    needs = (
        (family.gpus, len(host.gpus)),
        (spec.cpu_slots, host.cpu_slots),
        (family.memory_bytes, host.memory_bytes),
    )
    return min((have // want for want, have in needs if want), default=MOST_ON_A_HOST)


def fits_model(vram_gb: float, hosts: Iterable[HostRecord]) -> bool:
    """Return whether a GPU of some host has the memory for a model. A GPU that does not say how much
    it has shares its host's (unified memory)."""
    if not vram_gb:
        return True
    sizes = (gpu.memory_bytes or host.memory_bytes for host in hosts for gpu in host.gpus)
    return any(size >= vram_gb * GIB for size in sizes)
