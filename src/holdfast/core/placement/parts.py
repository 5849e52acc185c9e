"""A plan in parts that share no host, so that the store writes them at the same time. Pure."""

from collections import Counter
from collections.abc import Sequence

from holdfast.core.placement.types import JobPlacement

ROWS_OF_A_JOB = 4
"""What a job costs to write beside its ranks, in ranks: its own row, its attempt and its event
took 22 µs of PostgreSQL, and a rank 5.6."""


def split_by_hosts(placements: Sequence[JobPlacement], most: int) -> list[list[JobPlacement]]:
    """Divide placements among at most `most` lists with about as much to write in each. No host is
    in two of them, so none waits for another's locks; each keeps the order."""
    leaders: dict[str, str] = {}

    def find_leader(host_id: str) -> str:
        leader = leaders.setdefault(host_id, host_id)
        while leader != leaders[leader]:
            leader = leaders[leader]
        leaders[host_id] = leader
        return leader

    for placement in placements:
        leader = find_leader(placement.tasks[0].host_id)
        for other in placement.tasks[1:]:
            leaders[find_leader(other.host_id)] = leader
    homes = [find_leader(placement.tasks[0].host_id) for placement in placements]
    weights: Counter[str] = Counter()
    for home, placement in zip(homes, placements, strict=True):
        weights[home] += placement.size + ROWS_OF_A_JOB
    loads, part_of = [0] * most, dict[str, int]()
    for home, weight in sorted(weights.items(), key=lambda found: (-found[1], found[0])):
        part = part_of[home] = loads.index(min(loads))
        loads[part] += weight
    parts: list[list[JobPlacement]] = [[] for _ in range(most)]
    for home, placement in zip(homes, placements, strict=True):
        parts[part_of[home]].append(placement)
    return [part for part in parts if part]
