"""Room that is counted by sorts of hosts and corrected by what is taken decides as one that looks at
every host for every job."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.placement.plan import Candidate, Capacity, plan_admission

Chosen = dict[str, list[tuple[str, tuple[int, ...]]]]
"""By job: the host and the devices of each rank."""


class PlainHost:
    def __init__(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.slots = capacity.free_cpu_slots
        self.memory = capacity.free_memory_bytes
        self.devices = list(capacity.free_devices)

    def serves(self, job: Candidate) -> bool:
        has = self.capacity
        return (
            (not has.queues or job.queue in has.queues)
            and all(
                v == dict(has.labels).get(k) if v[0] != "!" else v[1:] != dict(has.labels).get(k)
                for k, v in job.host_labels.items()
            )
            and has.host_id not in job.barred_hosts
            and (not job.runtime or job.runtime not in has.lacking)
        )

    def fits_one(self, job: Candidate) -> bool:
        return (
            self.serves(job)
            and (not job.cpu_slots or self.slots >= job.cpu_slots)
            and (not job.memory_bytes or self.memory >= job.memory_bytes)
            and len(self.devices) >= job.gpus
        )

    def reserve_tasks(self, job: Candidate) -> tuple[int, ...]:
        self.slots -= job.cpu_slots
        self.memory -= job.memory_bytes
        taken, self.devices = tuple(self.devices[: job.gpus]), self.devices[job.gpus :]
        return taken

    def copy(self) -> PlainHost:
        other = PlainHost(self.capacity)
        other.slots, other.memory = self.slots, self.memory
        other.devices = list(self.devices)
        return other

    def count(self, job: Candidate) -> int:
        """How many tasks fit, by taking them one by one; no job here has more than a host."""
        rest, found = self.copy(), 0
        while found < job.tasks and rest.fits_one(job):
            rest.reserve_tasks(job)
            found += 1
        return found


def order_hosts(job: Candidate, counts: dict[str, int], hosts: Sequence[PlainHost]) -> list[str]:
    """The host of each rank, chosen by trying what the words of `choose_pack` and `choose_spread`
    say."""
    names = [h.capacity.host_id for h in hosts if counts[h.capacity.host_id]]
    liked = [name for name in names if name not in job.avoid_hosts]
    avoided = [name for name in names if name in job.avoid_hosts]
    good = sum(counts[name] for name in liked)
    if good < job.tasks:
        whole = [name for name in liked for _ in range(counts[name])]
        return whole + pick(job, avoided, counts, job.tasks - good)
    return pick(job, liked, counts, job.tasks)


def pick(job: Candidate, names: list[str], counts: dict[str, int], tasks: int) -> list[str]:
    left = {name: counts[name] for name in names}
    chosen: list[str] = []
    if job.placement == "spread":
        order = sorted(names, key=lambda name: -counts[name])
        given = dict.fromkeys(order, 0)
        while sum(given.values()) < tasks:
            for name in order:
                if sum(given.values()) < tasks and given[name] < counts[name]:
                    given[name] += 1
        return [name for name in order for _ in range(given[name])]
    while tasks:
        enough = [name for name, count in left.items() if count >= tasks]
        if enough:
            name = min(enough, key=left.__getitem__)  # the first of equals
            taken = tasks
        else:
            name = max(reversed(list(left)), key=left.__getitem__)  # the last of equals
            taken = left[name]
        del left[name]
        chosen += [name] * taken
        tasks -= taken
    return chosen


def plan_plainly(
    jobs: Sequence[Candidate], capacities: Sequence[Capacity]
) -> tuple[Chosen, dict[str, int]]:
    """Each job looks at every host. Returns also how many tasks of each refused job fit."""
    hosts = sorted(
        map(PlainHost, capacities), key=lambda h: (len(h.devices), h.slots, h.capacity.host_id)
    )
    by_id = {h.capacity.host_id: h for h in hosts}
    found: Chosen = {}
    refused: dict[str, int] = {}
    for job in jobs:
        counts = {h.capacity.host_id: h.count(job) for h in hosts}
        if sum(counts.values()) < job.tasks:
            refused[job.job_id] = sum(counts.values())
            continue
        places = order_hosts(job, counts, hosts)
        found[job.job_id] = [(name, by_id[name].reserve_tasks(job)) for name in places]
    return found, refused


names = st.sampled_from(["h0", "h1", "h2", "h3"])
shapes = st.builds(
    Candidate,
    job_id=st.just(""),
    epoch=st.just(0),
    queue=st.sampled_from(["q", "r"]),
    priority=st.just(50),
    tasks=st.just(0),
    gpus=st.integers(0, 3),
    cpu_slots=st.integers(1, 2),
    memory_bytes=st.integers(0, 2),
    barred_hosts=st.sampled_from([(), (), ("h1",), ("h0", "h2")]),
    host_labels=st.sampled_from([{}, {}, {"zone": "a"}, {"zone": "!a"}]),
    runtime=st.sampled_from(["", "", "podman"]),
)
jobs_of_few_shapes = st.tuples(
    st.lists(shapes, min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.integers(1, 7),
            st.sampled_from(["pack", "spread"]),
            st.lists(names, max_size=2, unique=True).map(tuple),
        ),
        max_size=14,
    ),
).map(
    lambda drawn: [
        msgspec.structs.replace(
            drawn[0][at % len(drawn[0])],
            job_id=f"j{n}",
            tasks=tasks,
            placement=placement,
            avoid_hosts=avoid,
        )
        for n, (at, tasks, placement, avoid) in enumerate(drawn[1])
    ]
)
hosts_of_few_sorts = st.lists(
    st.builds(
        Capacity,
        host_id=st.just(""),
        name=st.just(""),
        incarnation=st.just("i"),
        queues=st.sampled_from(
            [frozenset[str](), frozenset[str](), frozenset({"q"}), frozenset({"r"})]
        ),
        labels=st.sampled_from([{}, {"zone": "a"}, {"zone": "b"}]),
        free_cpu_slots=st.integers(0, 6),
        free_memory_bytes=st.integers(0, 6),
        free_devices=st.sampled_from([(), (0, 1), (1, 2, 5, 7), tuple(range(6))]),
        lacking=st.sampled_from([frozenset[str](), frozenset({"podman"})]),
    ),
    max_size=5,
)


@settings(max_examples=400, deadline=None)
@given(jobs_of_few_shapes, hosts_of_few_sorts)
def test_counting_by_sorts_of_hosts_places_as_looking_at_each_does(
    jobs: list[Candidate], found: list[Capacity]
) -> None:
    hosts = [msgspec.structs.replace(h, host_id=f"h{i}", name=f"h{i}") for i, h in enumerate(found)]
    plan = plan_admission(jobs, hosts, {})
    placed = {p.job_id: [(t.host_id, t.devices) for t in p.list_ranks()] for p in plan.placements}
    expected, refused = plan_plainly(jobs, hosts)
    assert placed == expected
    assert plan.refusals.keys() == refused.keys()
    for job_id, words in plan.refusals.items():
        assert "held back" not in words
        if " of them fit " in words:
            assert f", and {refused[job_id]} of them fit " in words
