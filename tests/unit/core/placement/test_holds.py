"""Room held back for large gangs, and whose place a more important job takes (ADMIT-4, ADMIT-5).

Time is simulated: a cluster on which jobs end, when they said they would or earlier, and a plan is
made at every end.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.placement.holds import DRAIN_SECONDS, foretell_end
from holdfast.core.placement.plan import (
    AdmissionPlan,
    Candidate,
    Capacity,
    RunningTask,
    plan_admission,
)

HOLD_BACK = 60.0


def host(name: str, gpus: int, cpu: int = 64) -> Capacity:
    return Capacity(
        host_id=name,
        name=name,
        incarnation="i",
        queues=frozenset(),
        free_cpu_slots=cpu,
        free_memory_bytes=1 << 40,
        free_devices=tuple(range(gpus)),
    )


def job(
    name: str,
    tasks: int = 1,
    gpus: int = 1,
    *,
    limit: float | None = None,
    waited: float = 0.0,
    priority: int = 50,
) -> Candidate:
    return Candidate(
        job_id=name,
        epoch=0,
        queue="q",
        priority=priority,
        tasks=tasks,
        gpus=gpus,
        cpu_slots=0,
        memory_bytes=0,
        waited_seconds=waited,
        time_limit_seconds=limit,
    )


def runs(
    name: str,
    host_id: str,
    gpus: int = 1,
    *,
    ends: float | None = None,
    priority: int = 50,
    ran: float = 1000.0,
    preemptible: bool = False,
    draining: bool = False,
    saved: float | None = None,
) -> RunningTask:
    return RunningTask(
        job_id=name,
        host_id=host_id,
        priority=priority,
        devices=gpus,
        cpu_slots=0,
        memory_bytes=0,
        ran_seconds=ran,
        ends_in_seconds=ends,
        preemptible=preemptible,
        draining=draining,
        saved_seconds=saved,
    )


def plan(
    jobs: Iterable[Candidate],
    hosts: Sequence[Capacity],
    running: Sequence[RunningTask] | None,
    lowest: int | None = None,
    hold_back: float | None = HOLD_BACK,
) -> AdmissionPlan:
    return plan_admission(
        jobs, hosts, {}, running=running, hold_back_seconds=hold_back, lowest_preemptible=lowest
    )


def placed(found: AdmissionPlan) -> list[str]:
    return [p.job_id for p in found.placements]


# ---- what is held back


def test_what_runs_is_only_asked_for_where_it_matters() -> None:
    big, small = job("big", 8, waited=99), job("small", limit=5)
    assert plan([small, big], [host("h", 1)], None).needs_running is False, (
        "nobody was started past it"
    )
    assert plan([big, small], [host("h", 1)], None).needs_running is True
    assert (
        plan(
            [msgspec.structs.replace(big, waited_seconds=1.0), small], [host("h", 1)], None
        ).needs_running
        is False
    )
    assert plan([big, small], [host("h", 1)], None, hold_back=None).needs_running is False


def test_others_use_held_room_only_while_they_end_in_time() -> None:
    """ADMIT-4: 4 GPUs, 2 of them free; the gang of 4 fits in 100 s."""
    running = [runs("a", "h", 2, ends=100.0)]
    jobs = [
        job("gang", 4, waited=61),
        job("short", limit=100),
        job("long", limit=101),
        job("endless"),
    ]
    found = plan(jobs, [host("h", 2)], running)
    assert placed(found) == ["short"]
    assert found.refusals["gang"] == "room is held back for it on h: it fits in 100 s at the latest"
    # Two are free, and no job is told that there are none.
    held = (
        "what is free is held back for a job that waited longer, and this one would not end in time"
    )
    found = plan(
        [job("gang", 4, waited=61), job("long", limit=101), job("two", 2)], [host("h", 2)], running
    )
    silent = held.replace("this one would not end in time", "nothing tells when this one would end")
    assert (found.refusals["long"], found.refusals["two"]) == (held, silent)
    assert placed(
        plan(
            [msgspec.structs.replace(jobs[0], waited_seconds=59.0), *jobs[1:]],
            [host("h", 2)],
            running,
        )
    ) == ["short", "long"]


def test_an_expectation_back_fills_as_a_limit_does_and_the_shorter_counts() -> None:
    """ADMIT-4: the gang of 4 fits in about 100 s, as the work there is expected to take."""
    running = [msgspec.structs.replace(runs("a", "h", 2, ends=100.0), foretold=True)]
    expects = msgspec.structs.replace
    jobs = [
        job("gang", 4, waited=61),
        expects(job("short", limit=5000), expected_seconds=100.0),
        expects(job("long", limit=None), expected_seconds=101.0),
        job("silent"),
    ]
    found = plan(jobs, [host("h", 2)], running)
    assert placed(found) == ["short"]
    told = "room is held back for it on h: it fits in about 100 s, if what runs there takes as long as expected"
    assert found.refusals["gang"] == told
    alone = plan([jobs[0], jobs[3]], [host("h", 2)], running)
    assert "nothing tells when this one would end" in alone.refusals["silent"]


def test_a_job_that_overruns_its_expectation_goes_on_and_is_planned_anew() -> None:
    """Its end is never now, it is further away the longer it has overrun, and never past its limit."""
    assert foretell_end(30.0, None, None) == (None, False)
    assert foretell_end(30.0, 100.0, None) == (70.0, False)
    assert foretell_end(30.0, None, 90.0) == (60.0, True)
    assert foretell_end(30.0, 50.0, 90.0) == (20.0, False)
    assert foretell_end(90.0, None, 90.0) == (60.0, True)
    assert foretell_end(490.0, None, 90.0) == (400.0, True)
    assert foretell_end(490.0, 500.0, 90.0) == (10.0, False)
    running = [msgspec.structs.replace(runs("a", "h", 2, ends=400.0), foretold=True)]
    brief = msgspec.structs.replace(job("brief"), expected_seconds=300.0)
    assert placed(plan([job("gang", 4, waited=61), brief], [host("h", 2)], running)) == ["brief"]


def test_room_it_does_not_need_is_not_held() -> None:
    """A gang of 3 on a host of 4 leaves one for ever, and the other hosts alone."""
    running = [runs("a", "h0", 3, ends=50.0), runs("b", "h1", 3, ends=900.0)]
    found = plan(
        [job("gang", 3, waited=61), *(job(f"e{i}") for i in range(4))],
        [host("h0", 1), host("h1", 1)],
        running,
    )
    assert placed(found) == ["e0", "e1"]


def test_without_time_limits_the_rest_of_the_cluster_goes_on() -> None:
    """Nothing says when it fits: it gets its hosts as they empty, and no other host is touched by
    that."""
    running = [runs(f"r{i}", f"h{i}", 1) for i in range(8)]
    hosts = [host(f"h{i}", 1) for i in range(8)]
    found = plan([job("gang", 2, 2, waited=61), *(job(f"e{i}") for i in range(8))], hosts, running)
    assert len(placed(found)) == 6, "two hosts are held, six are not"
    assert "when work ends there of which nothing tells how long it takes" in found.refusals["gang"]


def test_a_second_holder_is_not_robbed_for_the_first() -> None:
    """Both wait for the same host; what is to spare there is what both leave."""
    running = [runs("a", "h", 2, ends=10.0), runs("b", "h", 4, ends=20.0)]
    jobs = [
        job("first", 1, 4, waited=99),
        job("second", 1, 4, waited=99),
        job("endless"),
        job("brief", limit=10),
    ]
    found = plan(jobs, [host("h", 2)], running)
    assert placed(found) == ["brief"]
    assert "in 10 s" in found.refusals["first"]
    assert "in 20 s" in found.refusals["second"]


def test_a_gang_that_could_never_fit_holds_nothing() -> None:
    found = plan(
        [job("gang", 99, waited=999), job("small")], [host("h", 1)], [runs("a", "h", 3, ends=5.0)]
    )
    assert placed(found) == ["small"]


@dataclass
class Cluster:
    """Jobs that run until they end, on simulated time."""

    gpus: list[int]
    hold_back: float | None = HOLD_BACK
    now: float = 0.0
    running: list[tuple[str, str, int, float, float | None]] = field(
        default_factory=list
    )  # job, host, gpus, really ends, limit ends
    started: dict[str, float] = field(default_factory=dict)

    def free(self, host_id: str) -> int:
        return self.gpus[int(host_id[1:])] - sum(
            g for _, h, g, _, _ in self.running if h == host_id
        )

    def hosts(self) -> list[Capacity]:
        return [host(f"h{i}", self.free(f"h{i}")) for i in range(len(self.gpus))]

    def admit(self, queue: list[tuple[Candidate, float, float]]) -> AdmissionPlan:
        """`queue`: candidate, since when it waits, how long it really takes. Those started are
        taken out of it."""
        waiting = [
            msgspec.structs.replace(c, waited_seconds=self.now - since) for c, since, _ in queue
        ]
        tasks = [
            runs(j, h, g, ends=None if lim is None else max(0.0, lim - self.now))
            for j, h, g, _, lim in self.running
        ]
        found = plan(waiting, self.hosts(), tasks, hold_back=self.hold_back)
        takes = {c.job_id: (c, seconds) for c, _, seconds in queue}
        for placement in found.placements:
            candidate, seconds = takes[placement.job_id]
            limit = candidate.time_limit_seconds
            self.started[placement.job_id] = self.now
            for task in placement.list_ranks():
                ends = None if limit is None else self.now + limit
                self.running.append(
                    (placement.job_id, task.host_id, candidate.gpus, self.now + seconds, ends)
                )
                assert self.free(task.host_id) >= 0
        queue[:] = [entry for entry in queue if entry[0].job_id not in self.started]
        return found

    def step(self) -> None:
        """To the next end."""
        self.now = min(ends for *_, ends, _ in self.running)
        self.running = [entry for entry in self.running if entry[3] > self.now]


def feed(
    queue: list[tuple[Candidate, float, float]], count: int, now: float, chance: random.Random
) -> None:
    """Small jobs without end: there are always `count` of them waiting, each with a time limit it
    may use up."""
    while len([entry for entry in queue if entry[0].tasks == 1]) < count:
        limit = chance.choice([20.0, 45.0, 90.0])
        small = job(f"small-{chance.random()}", 1, chance.choice([1, 1, 2]), limit=limit)
        queue.append((small, now, limit * chance.choice([0.3, 1.0, 1.0])))


def predict(found: AdmissionPlan, job_id: str) -> float | None:
    words = found.refusals.get(job_id, "").rsplit(" in ", 1)
    return (
        float(words[1].split(" s at")[0])
        if len(words) == 2 and " s at the latest" in words[1]
        else None
    )


@pytest.mark.parametrize("seed", range(12))
def test_a_large_gang_starts_by_the_time_that_was_promised_it(seed: int) -> None:
    """Under an endless stream of small jobs. What is promised never moves later, and meanwhile room
    is used."""
    chance = random.Random(seed)
    cluster = Cluster(gpus=[chance.choice([4, 8]) for _ in range(4)])
    queue: list[tuple[Candidate, float, float]] = []
    feed(queue, 40, 0.0, chance)
    cluster.admit(queue)
    big = job("big", chance.choice([2, 3]), 4)
    queue.insert(0, (big, 0.0, 10.0))
    promised, filled = math.inf, 0
    while "big" not in cluster.started:
        cluster.step()
        feed(queue, 40, cluster.now, chance)
        before = len(cluster.started)
        found = cluster.admit(queue)
        held = predict(found, "big")
        if held is not None:
            assert cluster.now + held <= promised + 1.0, (
                f"{promised=} and now {cluster.now + held}"
            )  # whole seconds are told
            promised = min(promised, cluster.now + held)
            filled += len(cluster.started) - before
        assert cluster.now < 400, "starved"
    assert math.isfinite(promised)
    assert cluster.started["big"] <= promised + 1.0
    assert filled, (
        "room that is held back was left empty although short jobs would have ended in time"
    )


def test_without_holding_back_it_would_starve() -> None:
    """The test above can fail: the same stream, nothing held."""
    chance = random.Random(1)
    cluster = Cluster(gpus=[8, 8], hold_back=None)
    queue: list[tuple[Candidate, float, float]] = []
    feed(queue, 40, 0.0, chance)
    cluster.admit(queue)
    queue.insert(0, (job("big", 2, 8), 0.0, 10.0))
    while cluster.now < 400:
        feed(queue, 40, cluster.now, chance)
        cluster.admit(queue)
        cluster.step()
    assert "big" not in cluster.started


@settings(max_examples=150)
@given(st.data())
def test_nobody_of_lower_order_takes_what_a_holder_needs(data: st.DataObject) -> None:
    """At its promised time the first holder fits, with everything that the plan started besides it,
    however long that runs."""
    n = data.draw(st.integers(1, 4))
    sizes = data.draw(st.lists(st.integers(1, 6), min_size=n, max_size=n))
    running: list[RunningTask] = []
    free = list(sizes)
    for i in range(n):
        while free[i] and data.draw(st.booleans()):
            gpus = data.draw(st.integers(1, free[i]))
            free[i] -= gpus
            ends = data.draw(st.sampled_from([5.0, 10.0, 30.0, None]))
            running.append(runs(f"r{len(running)}", f"h{i}", gpus, ends=ends))
    jobs = [
        job(
            f"j{k}",
            data.draw(st.integers(1, 4)),
            data.draw(st.integers(1, 3)),
            limit=data.draw(st.sampled_from([3.0, 5.0, 12.0, 60.0, None])),
            waited=data.draw(st.sampled_from([0.0, 99.0])),
        )
        for k in range(data.draw(st.integers(1, 7)))
    ]
    found = plan(jobs, [host(f"h{i}", free[i]) for i in range(n)], running)
    holder = next(
        (j for j in jobs if j.job_id in found.refusals and "held back" in found.refusals[j.job_id]),
        None,
    )
    if holder is None:
        return
    promised = predict(found, holder.job_id)
    at = math.inf if promised is None else promised
    after = jobs[jobs.index(holder) + 1 :]
    stays = {p.job_id: p for p in found.placements}
    room = list(free)
    for task in running:
        ends = math.inf if task.ends_in_seconds is None else task.ends_in_seconds
        room[int(task.host_id[1:])] += task.devices if ends <= at else 0
    for j in jobs:
        if j.job_id not in stays:
            continue
        ends_by_then = (
            j in after
            and j.time_limit_seconds is not None
            and j.time_limit_seconds <= at < math.inf
        )
        for place in stays[j.job_id].tasks:
            room[int(place.host_id[1:])] -= 0 if ends_by_then else j.gpus
    assert sum(r // holder.gpus for r in room) >= holder.tasks, (holder, found, room)


# ---- preemption


def test_the_least_important_then_what_loses_least_then_the_fewest() -> None:
    """COST-1."""
    hosts = [host("h0", 0), host("h1", 0), host("h2", 0)]
    running = [
        runs("old", "h0", 2, priority=10, ran=900, preemptible=True),
        runs("young", "h1", 2, priority=10, ran=400, preemptible=True),
        runs("better", "h2", 4, priority=20, ran=301, preemptible=True),
        runs("firm", "h2", 4, priority=10),
    ]
    assert plan([job("p", 1, 2, priority=60)], hosts, running, 10).preemptions[0].victims == (
        "young",
    )
    assert plan([job("p", 1, 4, priority=60)], hosts, running, 10).preemptions[0].victims == (
        "better",
    )
    assert plan([job("p", 2, 2, priority=60)], hosts, running, 10).preemptions[0].victims == (
        "young",
        "old",
    ), "`better` would stop one of them in its turn"
    assert not plan([job("p", 5, 2, priority=60)], hosts, running, 10).preemptions, (
        "it would not fit even then"
    )
    assert not plan([job("p", 1, 2, priority=10)], hosts, running, 10).preemptions, (
        "its own priority is not lower"
    )
    assert not plan([job("p", 1, 2, priority=60)], hosts, running, None).preemptions, (
        "preemption is off"
    )


def test_nobody_is_stopped_for_room_that_comes_anyway() -> None:
    lazy = runs("v", "h", 2, priority=10, preemptible=True)
    p = job("p", 1, 2, priority=60)
    assert plan([p], [host("h", 0)], [lazy], 10).preemptions
    assert not plan([p], [host("h", 0)], [lazy, runs("d", "h", 2, draining=True)], 10).preemptions
    assert not plan(
        [p], [host("h", 0)], [lazy, runs("e", "h", 2, ends=DRAIN_SECONDS)], 10
    ).preemptions
    assert plan(
        [p], [host("h", 0)], [lazy, runs("e", "h", 2, ends=DRAIN_SECONDS + 1)], 10
    ).preemptions


def test_a_job_may_not_be_stopped_while_one_of_its_ranks_is_too_young() -> None:
    old, young = (
        runs("v", "h", 1, priority=10, preemptible=True),
        runs("v", "h", 1, priority=10, preemptible=False),
    )
    assert not plan([job("p", 1, 2, priority=60)], [host("h", 0)], [old, young], 10).preemptions


def test_room_that_is_made_stays_with_whom_it_was_made_for() -> None:
    """One of two victims has gone. A job of lower order, however short, must not slip in if it
    outlives the other."""
    running = [runs("v1", "h", 2, priority=10, draining=True)]
    found = plan(
        [job("p", 1, 4, priority=60), job("thief"), job("brief", limit=30)],
        [host("h", 2)],
        running,
        10,
    )
    assert placed(found) == ["brief"]
    assert found.refusals["p"] == "room is held back for it on h: it fits when v1 has stopped there"


def test_no_short_job_makes_a_preemptor_wait_longer_than_the_notice() -> None:
    """EVICT-1: room that is free already is used only by a job that ends within the notice."""
    going = runs("v1", "h", 2, priority=10, draining=True)
    running = [msgspec.structs.replace(going, notice_left_seconds=20.0)]
    jobs = [job("p", 1, 4, priority=60), job("brief", limit=30), job("briefer", limit=20)]
    found = plan(jobs, [host("h", 2)], running, 10)
    assert placed(found) == ["briefer"]
    assert found.refusals["p"] == "room is held back for it on h: it fits when v1 has stopped there"
    assert not found.preemptions
    longer = [msgspec.structs.replace(going, notice_left_seconds=900.0)]
    assert placed(plan(jobs, [host("h", 2)], longer, 10)) == ["brief", "briefer"]


def test_two_that_preempt_do_not_count_on_the_same_room() -> None:
    """ADMIT-5: the free GPU is the first one's; the second stops as many as it needs by itself, or
    none."""
    running = [runs(f"v{i}", "h", 1, priority=10, ran=500 + i, preemptible=True) for i in range(3)]
    jobs = [job("p1", 1, 2, priority=70), job("p2", 1, 2, priority=60)]
    found = plan(jobs, [host("h", 1)], running, 10)
    assert [(p.job_id, p.victims) for p in found.preemptions] == [
        ("p1", ("v0",)),
        ("p2", ("v1", "v2")),
    ]
    assert [
        (p.job_id, p.victims) for p in plan(jobs, [host("h", 1)], running[:2], 10).preemptions
    ] == [("p1", ("v0",))]


def test_a_preemptor_leaves_the_room_of_one_that_waits_before_it_alone() -> None:
    running = [
        runs("a", "h", 1, ends=200.0, priority=80),
        runs("v", "h", 1, priority=10, preemptible=True),
    ]
    jobs = [job("firm", 1, 2, priority=10, waited=99), job("p", 1, 2, priority=60)]
    # `firm` may preempt no job and holds the free GPU for its second one; `p` needs that as well.
    assert not plan(jobs, [host("h", 1)], running, 10).preemptions


def needed(
    victims: Iterable[str], p: Candidate, free: Sequence[int], running: Sequence[RunningTask]
) -> bool:
    """Whether `p` fits once these have gone, by counting."""
    room, going = list(free), set(victims)
    for task in running:
        if task.job_id in going or task.draining:
            room[int(task.host_id[1:])] += task.devices
    return sum(r // p.gpus for r in room) >= p.tasks


@settings(max_examples=400)
@given(st.data())
def test_victims_cost_as_little_as_can_be_and_none_where_it_would_not_help(
    data: st.DataObject,
) -> None:
    """COST-1, against trying every set of running jobs."""
    n = data.draw(st.integers(1, 3))
    free = data.draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    running: list[RunningTask] = []
    for k in range(data.draw(st.integers(1, 6))):
        fields = (
            data.draw(st.sampled_from([10, 20, 60])),
            data.draw(st.booleans()),
            data.draw(st.sampled_from([0, 0, 0, 1])),
            data.draw(st.sampled_from([None, 0.0, 1.0, 30.0, 5000.0])),
        )
        for i in data.draw(st.sets(st.integers(0, n - 1), min_size=1)):
            running.append(
                runs(
                    f"r{k}",
                    f"h{i}",
                    data.draw(st.integers(1, 3)),
                    priority=fields[0],
                    preemptible=fields[1],
                    draining=bool(fields[2]),
                    saved=fields[3],
                )
            )
    p = job("p", data.draw(st.integers(1, 4)), data.draw(st.integers(1, 4)), priority=60)
    found = plan([p], [host(f"h{i}", free[i]) for i in range(n)], running, 10)
    victims = found.preemptions[0].victims if found.preemptions else ()
    by_id = {t.job_id: t for t in running}
    for victim in victims:
        assert by_id[victim].preemptible
        assert by_id[victim].priority < p.priority
        assert not by_id[victim].draining
    eligible = sorted(
        i for i, t in by_id.items() if t.preemptible and t.priority < 60 and not t.draining
    )

    def cost(some: Iterable[str]) -> tuple[int, float, int]:
        mine = [task for task in running if task.job_id in set(some)]
        lost = sum(
            t.devices * min(t.ran_seconds, math.inf if t.saved_seconds is None else t.saved_seconds)
            for t in mine
        )
        return max((t.priority for t in mine), default=0), lost, len({t.job_id for t in mine})

    fitting = [
        cost(some)
        for size in range(len(eligible) + 1)
        for some in combinations(eligible, size)
        if needed(some, p, free, running)
    ]
    if not fitting or placed(found):
        assert not victims
    else:
        assert cost(victims) == min(fitting)
        assert needed(victims, p, free, running)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_of_many_none_is_stopped_who_is_not_needed(data: st.DataObject) -> None:
    """Where trying everything would take too long, still no job is stopped in vain."""
    n = 40
    running = [
        runs(
            f"r{k:03d}",
            f"h{data.draw(st.integers(0, n - 1))}",
            1,
            priority=data.draw(st.integers(1, 40)),
            preemptible=True,
        )
        for k in range(120)
    ]
    p = job("p", 12, data.draw(st.integers(1, 2)), priority=60)
    found = plan([p], [host(f"h{i}", 0) for i in range(n)], running, 1)
    if not found.preemptions:
        assert not needed([t.job_id for t in running], p, [0] * n, running)
        return
    victims = found.preemptions[0].victims
    assert needed(victims, p, [0] * n, running)
    for one in victims:
        assert not needed(set(victims) - {one}, p, [0] * n, running), f"{one} is stopped in vain"


# ---- what is remembered


@given(
    st.lists(
        st.tuples(
            st.integers(1, 9),
            st.integers(1, 3),
            st.sampled_from([None, 20.0, 500.0]),
            st.sampled_from([0.0, 99.0]),
            st.sampled_from([10, 50, 90]),
            st.sampled_from(["pack", "spread"]),
        ),
        max_size=12,
    ),
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.integers(1, 3),
            st.sampled_from([None, 30.0, 300.0]),
            st.sampled_from([10, 50]),
            st.booleans(),
        ),
        max_size=6,
    ),
)
@example(  # two jobs that wait for a stop, and only one of them ends before the room is needed
    [(8, 2, None, 0.0, 90, "pack"), (1, 1, None, 0.0, 50, "pack"), (6, 1, 20.0, 0.0, 50, "pack")],
    [0, 1, 4],
    [
        (0, 1, None, 10, True),
        *[(0, 2, 30.0, 10, False)] * 3,
        (0, 3, 30.0, 10, False),
        (1, 1, None, 10, True),
    ],
)
@settings(max_examples=400, deadline=None)
def test_what_is_remembered_of_a_shape_changes_no_plan(
    rows: list[tuple[int, int, float | None, float, int, str]],
    free: list[int],
    busy: list[tuple[int, int, float | None, int, bool]],
) -> None:
    """Beside the rule without a memory: there each job has a queue, and so a shape, of its own."""
    hosts = [host(f"h{n}", gpus) for n, gpus in enumerate(free)]
    running = [
        runs(f"r{n}", f"h{at % len(free)}", gpus, ends=ends, priority=priority, preemptible=may)
        for n, (at, gpus, ends, priority, may) in enumerate(busy)
    ]
    waiting = [
        msgspec.structs.replace(
            job(f"j{n}", tasks, gpus, limit=limit, waited=waited, priority=priority),
            placement=placement,
        )
        for n, (tasks, gpus, limit, waited, priority, placement) in enumerate(rows)
    ]
    waiting.sort(key=lambda j: -j.priority)
    alone = [msgspec.structs.replace(j, queue=f"q{n}") for n, j in enumerate(waiting)]
    for known in (None, running):
        found, naive = plan(waiting, hosts, known, 10), plan(alone, hosts, known, 10)
        seats = [[(p.job_id, p.tasks) for p in made.placements] for made in (found, naive)]
        assert seats[0] == seats[1]
        assert found.preemptions == naive.preemptions
        words = {j.job_id: f"queue {j.queue} now" for j in alone}
        assert found.refusals == {
            i: said.replace(words[i], "queue q now") for i, said in naive.refusals.items()
        }
