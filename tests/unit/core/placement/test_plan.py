"""plan_admission: all or none, never more than there is, avoided hosts last (ADMIT-1…3)."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.placement.plan import (
    Candidate,
    Capacity,
    QuotaLeft,
    TaskPlacement,
    plan_admission,
)


def host(
    name: str, cpu: int = 4, gpus: int = 0, memory: int = 1 << 34, queues: tuple[str, ...] = ()
) -> Capacity:
    return Capacity(
        host_id=name,
        name=name,
        incarnation="i",
        queues=frozenset(queues),
        free_cpu_slots=cpu,
        free_memory_bytes=memory,
        free_devices=tuple(range(gpus)),
    )


def job(
    name: str,
    *,
    tasks: int = 1,
    gpus: int = 0,
    cpu: int = 1,
    queue: str = "q",
    avoid: tuple[str, ...] = (),
) -> Candidate:
    return Candidate(
        job_id=name,
        epoch=0,
        queue=queue,
        priority=50,
        tasks=tasks,
        gpus=gpus,
        cpu_slots=cpu,
        memory_bytes=0,
        avoid_hosts=avoid,
    )


candidates = st.lists(
    st.builds(
        job,
        st.uuids().map(str),
        tasks=st.integers(1, 6),
        gpus=st.integers(0, 3),
        cpu=st.integers(0, 3),
        queue=st.sampled_from(["q", "r"]),
        avoid=st.sampled_from([(), ("h0",), ("h0", "h1")]),
    ),
    max_size=12,
)
capacities = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 4), st.sampled_from([(), ("q",), ("r",)])),
    max_size=5,
).map(
    lambda rows: [
        host(f"h{i}", cpu, gpus, queues=queues) for i, (cpu, gpus, queues) in enumerate(rows)
    ]
)


@given(candidates, capacities, st.dictionaries(st.sampled_from(["q", "r"]), st.integers(0, 3)))
def test_never_more_than_there_is(
    jobs: list[Candidate], hosts: list[Capacity], headroom: dict[str, int]
) -> None:
    """ADMIT-1, ADMIT-2."""
    plan = plan_admission(jobs, hosts, headroom)
    by_id = {j.job_id: j for j in jobs}
    rooms = {h.host_id: h for h in hosts}
    slots: Counter[str] = Counter()
    devices: list[tuple[str, int]] = []
    started: Counter[str] = Counter()
    for placement in plan.placements:
        j = by_id[placement.job_id]
        started[j.queue] += 1
        ranks = placement.list_ranks()
        assert [t.rank for t in ranks] == list(range(j.tasks))
        assert placement.size == j.tasks
        for task in ranks:
            assert len(task.devices) == j.gpus
            assert not rooms[task.host_id].queues or j.queue in rooms[task.host_id].queues
            slots[task.host_id] += j.cpu_slots
            devices += [(task.host_id, d) for d in task.devices]
    assert len(devices) == len(set(devices))
    assert all(slots[h] <= rooms[h].free_cpu_slots for h in slots)
    assert all(device in rooms[h].free_devices for h, device in devices)
    assert all(started[q] <= n for q, n in headroom.items())
    assert {p.job_id for p in plan.placements}.isdisjoint(plan.refusals)
    assert len(plan.placements) + len(plan.refusals) == len(jobs)


@given(candidates, capacities)
def test_a_refused_job_really_finds_no_room(jobs: list[Candidate], hosts: list[Capacity]) -> None:
    """What is left after the plan cannot hold a job that the plan refused (room only shrinks)."""
    plan = plan_admission(jobs, hosts, {})
    by_id = {j.job_id: j for j in jobs}
    left = {h.host_id: [h.free_cpu_slots, len(h.free_devices)] for h in hosts}
    for placement in plan.placements:
        for task in placement.list_ranks():
            left[task.host_id][0] -= by_id[placement.job_id].cpu_slots
            left[task.host_id][1] -= len(task.devices)
    for job_id in plan.refusals:
        j = by_id[job_id]
        room = 0
        for h in hosts:
            if h.queues and j.queue not in h.queues:
                continue
            cpu, gpus = left[h.host_id]
            room += min(cpu // j.cpu_slots if j.cpu_slots else 99, gpus // j.gpus if j.gpus else 99)
        assert room < j.tasks


def test_avoided_host_only_when_no_other_has_room() -> None:
    """ADMIT-3."""
    plan = plan_admission(
        [job("a", avoid=("h0",)), job("b", avoid=("h0",))], [host("h0", 1), host("h1", 1)], {}
    )
    assert [p.tasks[0].host_id for p in plan.placements] == ["h1", "h0"]


def test_a_gang_that_does_not_fit_takes_nothing_from_the_next() -> None:
    plan = plan_admission(
        [job("big", tasks=3, gpus=1, cpu=0), job("small", gpus=2, cpu=0)], [host("h0", gpus=2)], {}
    )
    assert [p.job_id for p in plan.placements] == ["small"]
    assert "3 tasks" in plan.refusals["big"]


# ---- quotas (QUOTA-2)


def of_project(name: str, project: str, *, tasks: int = 1, gpus: int = 0) -> Candidate:
    return msgspec.structs.replace(job(name, tasks=tasks, gpus=gpus, cpu=0), project=project)


@given(
    st.lists(
        st.tuples(st.sampled_from(["p", "r", "free"]), st.integers(1, 3), st.integers(0, 2)),
        max_size=15,
    ),
    st.dictionaries(
        st.sampled_from(["p", "r"]),
        st.builds(
            QuotaLeft, jobs=st.none() | st.integers(-2, 4), gpus=st.none() | st.integers(-2, 6)
        ),
    ),
)
def test_no_project_starts_more_than_it_may(
    shapes: list[tuple[str, int, int]], quotas: dict[str, QuotaLeft]
) -> None:
    jobs = [
        of_project(f"j{i}", project, tasks=n, gpus=g) for i, (project, n, g) in enumerate(shapes)
    ]
    plan = plan_admission(jobs, [host("h0", gpus=99)], {}, quotas)
    placed = {p.job_id for p in plan.placements}
    for project, left in quotas.items():
        mine = [j for j in jobs if j.project == project and j.job_id in placed]
        if left.jobs is not None:
            assert len(mine) <= max(0, left.jobs)
        if left.gpus is not None:
            assert sum(j.gpus * j.tasks for j in mine) <= max(0, left.gpus)
    for j in jobs:
        if j.project not in quotas:
            assert j.job_id in placed, "a project without a quota waits for another's"
        elif j.job_id not in placed:
            assert "quota_" in plan.refusals[j.job_id]


def test_a_held_project_starts_nothing_and_says_why() -> None:
    """QUOTA-3"""
    jobs = [of_project("a", "p"), of_project("b", "q")]
    plan = plan_admission(jobs, [host("h0")], {}, {"p": QuotaLeft(jobs=0, held="it is spent")})
    assert [p.job_id for p in plan.placements] == ["b"]
    assert plan.refusals == {"a": "it is spent"}


def test_a_quota_says_what_is_left_and_what_is_asked() -> None:
    quotas = {"p": QuotaLeft(jobs=1), "r": QuotaLeft(gpus=3)}
    jobs = [
        of_project("a", "p"),
        of_project("b", "p"),
        of_project("c", "r", tasks=2, gpus=2),
        of_project("d", "r"),
    ]
    plan = plan_admission(jobs, [host("h0", gpus=9)], {}, quotas)
    assert [p.job_id for p in plan.placements] == ["a", "d"]
    assert plan.refusals == {
        "b": "project p already runs as many jobs as it may (quota_jobs)",
        "c": "project r has 3 GPUs of its quota left, and it needs 4 (quota_gpus)",
    }


# ---- gangs


def spread(name: str, tasks: int, **more: object) -> Candidate:
    return msgspec.structs.replace(
        job(name, tasks=tasks, gpus=1, cpu=0), placement="spread", **more
    )


@given(st.lists(st.integers(0, 8), min_size=1, max_size=6), st.integers(1, 12), st.integers(1, 3))
def test_pack_takes_the_fewest_hosts_there_are(sizes: list[int], tasks: int, gpus: int) -> None:
    """Against trying every set of hosts; and of those that do, it leaves the largest holes
    alone."""
    hosts = [host(f"h{i}", gpus=n) for i, n in enumerate(sizes)]
    plan = plan_admission([job("g", tasks=tasks, gpus=gpus, cpu=0)], hosts, {})
    fits = [n // gpus for n in sizes]
    fewest = next(
        (
            k
            for k in range(1, len(sizes) + 1)
            if any(sum(c) >= tasks for c in combinations(fits, k))
        ),
        None,
    )
    if fewest is None:
        assert not plan.placements
        return
    used = [t.host_id for t in plan.placements[0].list_ranks()]
    assert len(set(used)) == fewest
    assert used == [h for h, n in Counter(used).items() for _ in range(n)], (
        "ranks of a host do not follow each other"
    )
    if fewest == 1:
        assert fits[int(used[0][1:])] == min(n for n in fits if n >= tasks)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=6), st.integers(1, 12))
def test_spread_takes_as_many_hosts_as_it_can_and_evenly(sizes: list[int], tasks: int) -> None:
    plan = plan_admission(
        [spread("g", tasks)], [host(f"h{i}", gpus=n) for i, n in enumerate(sizes)], {}
    )
    if sum(sizes) < tasks:
        assert not plan.placements
        return
    used = Counter(t.host_id for t in plan.placements[0].list_ranks())
    assert len(used) == min(tasks, sum(n > 0 for n in sizes))
    most = max(used.values())
    assert all(used[f"h{i}"] >= min(n, most - 1) for i, n in enumerate(sizes)), (
        "one host has two more than another with room"
    )


def labelled(name: str, **labels: str) -> Capacity:
    return msgspec.structs.replace(host(name, gpus=2), labels=labels)


def test_only_hosts_that_carry_all_the_labels_take_it() -> None:
    hosts = [
        labelled("plain"),
        labelled("a", zone="a"),
        labelled("both", zone="a", card="h200"),
        labelled("c", zone="c", card="h200"),
    ]
    wants = {"zone": "a", "card": "h200"}
    jobs = [
        spread("g", 3, host_labels=wants),
        spread("k", 2, host_labels=wants),
        spread("n", 1, host_labels={"zone": "x"}),
    ]
    plan = plan_admission(jobs, hosts, {})
    assert [(p.job_id, {t.host_id for t in p.tasks}) for p in plan.placements] == [("k", {"both"})]
    assert plan.refusals["n"] == "no active host of queue q carries the labels zone=x"
    assert "2 of them fit" in plan.refusals["g"]


def place(one: Candidate, hosts: list[Capacity]) -> list[TaskPlacement]:
    return plan_admission([one], hosts, {}).placements[0].list_ranks()


@given(candidates, capacities)
def test_ranks_that_follow_each_other_on_a_host_are_placed_together(
    jobs: list[Candidate], hosts: list[Capacity]
) -> None:
    """All of a job's ranks on a host are one place, unless they have devices of their own."""
    by_id = {j.job_id: j for j in jobs}
    for placement in plan_admission(jobs, hosts, {}).placements:
        places = placement.tasks
        assert all(t.count == 1 or not t.devices for t in places)
        if not by_id[placement.job_id].gpus:
            assert len(places) == len({t.host_id for t in places})


def test_a_gang_uses_an_avoided_host_for_no_more_than_the_others_cannot_take() -> None:
    """ADMIT-3."""
    hosts = [host("bad", gpus=8), host("h1", gpus=2), host("h2", gpus=1)]
    for placement in ("pack", "spread"):
        one = msgspec.structs.replace(
            job("g", tasks=3, gpus=1, cpu=0, avoid=("bad",)), placement=placement
        )
        used = Counter(t.host_id for t in place(one, hosts))
        assert used == {"h1": 2, "h2": 1}
        more = msgspec.structs.replace(one, tasks=5)
        used = Counter(t.host_id for t in place(more, hosts))
        assert used == {"h1": 2, "h2": 1, "bad": 2}


def test_what_a_smaller_gang_could_not_have_is_not_refused_to_another_lane_or_size() -> None:
    """A shape that found no room is not looked at again; a smaller gang of it, and another shape,
    are."""
    jobs = [
        job("big", tasks=5, gpus=1, cpu=0),
        job("also", tasks=6, gpus=1, cpu=0),
        job("less", tasks=4, gpus=1, cpu=0),
    ]
    plan = plan_admission(jobs, [host("h", gpus=4)], {})
    assert [p.job_id for p in plan.placements] == ["less"]
    assert set(plan.refusals) == {"big", "also"}
