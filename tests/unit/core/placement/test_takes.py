"""plan_takes: which jobs hosts take for themselves (TAKE-1, TAKE-2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.placement.plan import Candidate, Capacity, plan_admission
from holdfast.core.placement.takes import AlikeGroup, Takes, TakeTerms, group_alike, plan_takes
from tests.unit.core.placement.test_plan import host, job

OPEN = ("q", "r")
CLOSED = "capped"
TERMS = TakeTerms(revision=1, ttls=dict.fromkeys(OPEN, 60.0), whole=True)
jobs = st.lists(
    st.builds(
        lambda number, tasks, gpus, cpu, queue, avoid, supervised, labels: msgspec.structs.replace(
            job(f"j{number}", tasks=tasks, gpus=gpus, cpu=cpu, queue=queue, avoid=avoid),
            supervised=supervised,
            host_labels=labels,
        ),
        st.integers(0, 30),
        st.sampled_from([1, 1, 1, 1, 3]),
        st.sampled_from([0, 0, 0, 1, 2]),
        st.integers(0, 3),
        st.sampled_from([*OPEN, *OPEN, CLOSED]),
        st.sampled_from([(), (), ("h1",)]),
        st.sampled_from([False, False, False, True]),
        st.sampled_from([{}, {}, {"zone": "a"}]),
    ),
    max_size=10,
    unique_by=lambda j: j.job_id,
)
hosts = st.lists(
    st.builds(
        lambda number, cpu, gpus, queues: host(f"h{number}", cpu, gpus, queues=queues),
        st.integers(1, 3),
        st.integers(0, 4),
        st.integers(0, 3),
        st.sampled_from([(), (), ("q",), ("q", CLOSED)]),
    ),
    max_size=3,
    unique_by=lambda h: h.host_id,
)
passing = st.sets(st.integers(0, 30).map(lambda n: f"j{n}"), max_size=8)


def serves(capacity: Capacity, wanted: Candidate) -> bool:
    named = not capacity.queues or wanted.queue in capacity.queues
    return named and all(capacity.labels.get(k) == v for k, v in wanted.host_labels.items())


def take(
    candidates: Sequence[Candidate], room: Sequence[Capacity], passed: set[str], cut: bool = False
) -> Takes:
    return plan_takes(group_alike(candidates), room, TERMS, passed, cut=cut)


@given(jobs, hosts, passing)
def test_only_plain_jobs_are_taken_and_only_on_free_room(
    candidates: list[Candidate], room: list[Capacity], passed: set[str]
) -> None:
    by_id, free = {c.job_id: c for c in candidates}, {h.host_id: h for h in room}
    placements = take(candidates, room, passed).placements
    assert len({p.job_id for p in placements}) == len(placements), "a job was taken twice"
    for capacity in room:
        here = [p for p in placements if p.tasks[0].host_id == capacity.host_id]
        devices = [d for p in here for d in p.tasks[0].devices]
        assert sum(by_id[p.job_id].cpu_slots for p in here) <= capacity.free_cpu_slots
        assert len(devices) == len(set(devices))
        assert set(devices) <= set(capacity.free_devices)
    for p in placements:
        found = by_id[p.job_id]
        assert (found.tasks, found.supervised) == (1, False)
        assert found.queue in OPEN
        assert (len(p.tasks[0].devices), p.epoch) == (found.gpus, found.epoch)
        assert serves(free[p.tasks[0].host_id], found)
        assert p.tasks[0].host_id not in found.avoid_hosts


@given(jobs, hosts, passing)
def test_no_host_goes_past_a_job_that_it_serves_but_one_the_leader_passed_over(
    candidates: list[Candidate], room: list[Capacity], passed: set[str]
) -> None:
    placements = take(candidates, room, passed).placements
    order = [c.job_id for c in candidates]
    taken = {p.job_id for p in placements}
    for p in placements:
        capacity = next(h for h in room if h.host_id == p.tasks[0].host_id)
        before = candidates[: order.index(p.job_id)]
        for other in before:
            gone_past = other.job_id in passed and capacity.host_id not in other.avoid_hosts
            fair = other.job_id in taken or gone_past or not serves(capacity, other)
            assert fair, f"{p.job_id} was taken past {other.job_id}"


@given(jobs, hosts.filter(lambda h: len(h) == 1))
def test_a_host_takes_nothing_that_the_leader_would_not_have_given_it(
    candidates: list[Candidate], room: list[Capacity]
) -> None:
    planned = plan_admission(candidates, room, {}).placements
    assert [p for p in take(candidates, room, set()).placements if p not in planned] == []


@given(jobs, hosts, passing, st.booleans())
def test_a_settled_host_leaves_the_leader_nothing(
    candidates: list[Candidate], room: list[Capacity], passed: set[str], cut: bool
) -> None:
    found = take(candidates, room, passed, cut)
    taken = {p.job_id for p in found.placements}
    left = [c for c in candidates if c.job_id not in taken]
    for capacity in room:
        if capacity.host_id not in found.settled:
            continue
        mine = [p for p in found.placements if p.tasks[0].host_id == capacity.host_id]
        used = sum(c.cpu_slots for c in candidates for p in mine if p.job_id == c.job_id)
        devices = {d for p in mine for d in p.tasks[0].devices}
        full = used >= capacity.free_cpu_slots and devices >= set(capacity.free_devices)
        assert full or not any(serves(capacity, c) for c in left)
        assert full or not cut


def test_a_gang_in_front_is_not_overtaken() -> None:
    found = take([job("gang", tasks=2), job("small")], [host("h1")], set())
    assert (found.placements, found.settled) == ((), frozenset())


def test_what_the_leader_passed_over_holds_nothing_up() -> None:
    found = take([job("gang", tasks=9), job("small")], [host("h1", cpu=1)], {"gang"})
    assert [p.job_id for p in found.placements] == ["small"]
    assert found.settled == {"h1"}, "it is full"


def test_a_job_that_avoids_the_host_is_not_gone_past() -> None:
    """Passed over when no host had room, it is the first to have this one's, by the leader's hand."""
    found = take([job("tripped", avoid=("h1",)), job("behind")], [host("h1", cpu=1)], {"tripped"})
    assert (found.placements, found.settled) == ((), frozenset())


def test_room_that_is_left_beside_a_waiting_job_is_the_leaders() -> None:
    found = take([job("gang", tasks=9), job("small")], [host("h1", cpu=2)], {"gang"})
    assert [p.job_id for p in found.placements] == ["small"]
    assert found.settled == frozenset()


small = st.lists(
    st.builds(
        lambda number, cpu, gpus, tasks, queue, avoid: job(
            f"j{number}", tasks=tasks, gpus=gpus, cpu=cpu, queue=queue, avoid=avoid
        ),
        st.integers(0, 30),
        st.sampled_from([1, 1, 1, 1, 2]),
        st.sampled_from([0, 0, 0, 0, 1]),
        st.sampled_from([1, 1, 1, 1, 3]),
        st.sampled_from([*OPEN, *OPEN, CLOSED]),
        st.sampled_from([(), (), (), ("h1",)]),
    ),
    max_size=12,
    unique_by=lambda j: j.job_id,
)


@given(small | jobs, hosts, passing, st.integers(0, 3), st.booleans())
def test_alike_jobs_are_planned_in_one_step_as_one_by_one(
    candidates: list[Candidate], room: list[Capacity], passed: set[str], over: int, cut: bool
) -> None:
    room = [msgspec.structs.replace(h, free_cpu_slots=h.free_cpu_slots - over) for h in room]
    alone = [AlikeGroup(job, [job.job_id], [job.epoch]) for job in candidates]
    plans = [
        plan_takes(given, room, TERMS, passed, cut=cut)
        for given in (alone, group_alike(candidates))
    ]
    assert plans[0].placements == plans[1].placements
    assert plans[0].settled == plans[1].settled
