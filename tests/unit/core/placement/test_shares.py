"""Shares: idle room is borrowed, and given back when its project asks (SHARE-1…3)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.placement.plan import (
    AdmissionPlan,
    Candidate,
    Capacity,
    RunningTask,
    Share,
    plan_admission,
)

PROJECTS = ("a", "b", "c")
LEAST_SECONDS = 3.0
"""How long an attempt runs in the simulation before it may be stopped."""


class Cluster:
    """Hosts of some GPUs, jobs that run on them, and jobs that wait, on simulated time."""

    def __init__(self, sizes: Sequence[int], shares: dict[str, int]) -> None:
        self.sizes = {f"h{n}": size for n, size in enumerate(sizes)}
        self.shares = shares
        self.waiting: list[Candidate] = []
        self.running: dict[str, tuple[Candidate, Counter[str]]] = {}
        self.since: dict[str, float] = {}
        self.draining: set[str] = set()
        self.stopped: Counter[str] = Counter()
        self.now = 0.0

    def submit(self, name: str, project: str, tasks: int, gpus: int, priority: int = 50) -> None:
        """Queue a job, in order of priority, then age."""
        self.waiting.append(
            Candidate(
                job_id=name,
                epoch=0,
                queue="q",
                project=project,
                priority=priority,
                tasks=tasks,
                gpus=gpus,
                cpu_slots=0,
                memory_bytes=0,
            )
        )
        self.waiting.sort(key=lambda job: -job.priority)

    def held(self, project: str, *, draining: bool = True) -> int:
        """GPUs of a project's live jobs."""
        return sum(
            job.gpus * job.tasks
            for job, _ in self.running.values()
            if job.project == project and (draining or job.job_id not in self.draining)
        )

    def capacities(self) -> list[Capacity]:
        """What is free."""
        busy: Counter[str] = Counter()
        for job, where in self.running.values():
            for host, tasks in where.items():
                busy[host] += tasks * job.gpus
        return [
            Capacity(
                host_id=host,
                name=host,
                incarnation="i",
                queues=frozenset(),
                free_cpu_slots=0,
                free_memory_bytes=0,
                free_devices=tuple(range(size - busy[host])),
            )
            for host, size in self.sizes.items()
        ]

    def tasks(self) -> list[RunningTask]:
        """What runs, as a store reads it."""
        return [
            RunningTask(
                job_id=job.job_id,
                host_id=host,
                project=job.project,
                priority=job.priority,
                devices=job.gpus,
                cpu_slots=0,
                memory_bytes=0,
                ran_seconds=self.now - self.since[job.job_id],
                draining=job.job_id in self.draining,
                stoppable=self.now - self.since[job.job_id] >= LEAST_SECONDS,
            )
            for job, where in self.running.values()
            for host, count in where.items()
            for _ in range(count)
        ]

    def plan(self, *, shared: bool = True) -> AdmissionPlan:
        """What admission would do now, with the running tasks where it asks for them."""
        names = {
            *self.shares,
            *(j.project for j in self.waiting),
            *(j.project for j, _ in self.running.values()),
        }
        shares = {
            name: Share(gpus=self.shares.get(name, 0), held_gpus=self.held(name)) for name in names
        }
        found = plan_admission(
            self.waiting,
            self.capacities(),
            {},
            shares=shares if shared else {},
            hold_back_seconds=60.0,
        )
        if not found.needs_running:
            return found
        return plan_admission(
            self.waiting,
            self.capacities(),
            {},
            shares=shares if shared else {},
            running=self.tasks(),
            hold_back_seconds=60.0,
        )

    def step(self) -> AdmissionPlan:
        """One round: the plan is applied, and what was draining before it is gone and queued again
        at the front."""
        gone = set(self.draining)
        found = self.plan()
        by_id = {job.job_id: job for job in self.waiting}
        for placement in found.placements:
            job = by_id[placement.job_id]
            where = Counter(task.host_id for task in placement.list_ranks())
            self.running[job.job_id] = (job, where)
            self.since[job.job_id] = self.now
            self.waiting.remove(job)
        for preemption in found.preemptions:
            self.draining.update(preemption.victims)
            self.stopped.update(preemption.victims)
        for job_id in gone:
            job, _ = self.running.pop(job_id)
            self.draining.discard(job_id)
            self.waiting.insert(0, job)
        self.waiting.sort(key=lambda job: -job.priority)
        self.now += 1.0
        return found

    def end(self, job_id: str) -> None:
        """A job succeeded."""
        self.running.pop(job_id)
        self.draining.discard(job_id)


clusters = st.builds(
    Cluster,
    st.lists(st.integers(1, 4), min_size=1, max_size=4),
    st.dictionaries(st.sampled_from(PROJECTS), st.integers(0, 6), min_size=1),
)
jobs = st.lists(
    st.tuples(
        st.sampled_from(PROJECTS),
        st.integers(1, 3),
        st.integers(1, 3),
        st.sampled_from([10, 50, 90]),
    ),
    max_size=14,
)


def fill(cluster: Cluster, rows: Sequence[tuple[str, int, int, int]], prefix: str) -> None:
    for n, (project, tasks, gpus, priority) in enumerate(rows):
        cluster.submit(f"{prefix}{n}", project, tasks, gpus, priority)


@given(clusters, jobs, jobs, st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_no_project_is_stopped_below_its_share_and_each_reclaim_seats_its_job(
    cluster: Cluster,
    first: list[tuple[str, int, int, int]],
    then: list[tuple[str, int, int, int]],
    seed: int,
) -> None:
    """SHARE-2, at every round of a run on which jobs end by chance; gangs go whole (ADMIT-1)."""
    chance = random.Random(seed)
    fill(cluster, first, "f")
    for n in range(16):
        if n == 5:
            fill(cluster, then, "t")
        for job_id in list(cluster.running):
            if job_id not in cluster.draining and chance.random() < 0.05:
                cluster.end(job_id)
        before = {p: cluster.held(p, draining=False) for p in PROJECTS}
        sizes = {i: (job.project, job.gpus * job.tasks) for i, (job, _) in cluster.running.items()}
        asked = {job.job_id: job for job in cluster.waiting}
        free = {c.host_id: len(c.free_devices) for c in cluster.capacities()}
        room = {i: where for i, (_, where) in cluster.running.items()}
        draining = set(cluster.draining)
        gpus_of = {i: job.gpus for i, (job, _) in cluster.running.items()}
        found = cluster.step()
        lost: Counter[str] = Counter()
        claimed: Counter[str] = Counter()
        going = set(draining)
        for preemption in found.preemptions:
            assert preemption.reclaims
            asker = asked[preemption.job_id]
            assert draining.isdisjoint(preemption.victims)
            for victim in preemption.victims:
                project, size = sizes[victim]
                assert project != asker.project
                lost[project] += size
            claimed[asker.project] += asker.gpus * asker.tasks
            going.update(preemption.victims)
            # Once all that is stopping is gone, the job that asked has its room.
            fits = sum(
                (free[h] + sum(room[v][h] * gpus_of[v] for v in going)) // asker.gpus for h in free
            )
            assert fits >= asker.tasks
        for project, size in lost.items():
            assert before[project] - size >= cluster.shares.get(project, 0)
        for project, size in claimed.items():
            assert before[project] + size <= cluster.shares.get(project, 0)


@given(clusters, jobs, jobs)
@settings(max_examples=80, deadline=None)
def test_projects_do_not_take_turns_in_stopping_each_other(
    cluster: Cluster, first: list[tuple[str, int, int, int]], then: list[tuple[str, int, int, int]]
) -> None:
    """SHARE-2: where no job ends and none comes, the stops end, and no job starts any more."""
    fill(cluster, first, "f")
    for _ in range(6):
        cluster.step()
    fill(cluster, then, "t")
    for _ in range(30):
        cluster.step()
    calm = [cluster.step() for _ in range(5)]
    assert not any(found.preemptions or found.placements for found in calm)
    assert max(cluster.stopped.values(), default=0) <= len(then) + len(first)


@given(clusters, jobs)
@settings(max_examples=100, deadline=None)
def test_idle_room_is_borrowed(cluster: Cluster, rows: list[tuple[str, int, int, int]]) -> None:
    """SHARE-1: with all hosts idle, shares leave no room unused that some job fits into."""
    fill(cluster, rows, "j")
    found = cluster.plan()
    asked = {job.job_id: job for job in cluster.waiting}
    free = dict(cluster.sizes)
    for placement in found.placements:
        for task in placement.list_ranks():
            free[task.host_id] -= asked[placement.job_id].gpus
    assert len(found.placements) + len(found.refusals) == len(rows)
    for job_id in found.refusals:
        job = asked[job_id]
        assert sum(size // job.gpus for size in free.values()) < job.tasks


@given(clusters, jobs)
def test_what_is_within_a_share_goes_first(
    cluster: Cluster, rows: list[tuple[str, int, int, int]]
) -> None:
    """SHARE-1: jobs that start within a share start as if no job that borrows were there."""
    fill(cluster, rows, "j")
    owned, held = [], Counter[str]()
    for job in cluster.waiting:
        if held[job.project] + job.gpus * job.tasks <= cluster.shares.get(job.project, 0):
            owned.append(job)
            alone = plan_admission(owned, cluster.capacities(), {})
            if job.job_id not in {p.job_id for p in alone.placements}:
                owned.pop()
            else:
                held[job.project] += job.gpus * job.tasks
    started = [p.job_id for p in cluster.plan().placements]
    assert started[: len(owned)] == [job.job_id for job in owned]


def borrowed() -> Cluster:
    """Two hosts of 4: b has held 4 for long, and c 4 since a moment ago; a owns 4, c owns 2."""
    cluster = Cluster([4, 4], {"a": 4, "c": 2})
    for n in range(4):
        cluster.submit(f"b{n}", "b", 1, 1, priority=50)
    cluster.step()
    cluster.now = 100.0
    for n in range(4):
        cluster.submit(f"c{n}", "c", 1, 1)
        cluster.step()
        cluster.now += 10
    assert len(cluster.running) == 8
    return cluster


def test_the_oldest_borrower_gives_back_its_cheapest_work_first() -> None:
    """SHARE-3."""
    cluster = borrowed()
    cluster.since["b2"] += 20  # it lost least work if it went
    cluster.submit("ask", "a", 1, 1)
    (preemption,) = cluster.step().preemptions
    assert (preemption.job_id, preemption.victims) == ("ask", ("b2",))
    assert (preemption.project, preemption.reclaims) == ("a", True)
    # While it stops, no other is asked, and the room is the asker's.
    cluster.submit("more", "b", 1, 1, priority=99)
    assert not cluster.step().preemptions
    assert [p.job_id for p in cluster.step().placements] == ["ask"]


def test_a_younger_loan_is_asked_for_what_the_older_cannot_give() -> None:
    """SHARE-3: b gives four, and c the two that are not its own."""
    cluster = borrowed()
    cluster.shares["a"] = 6
    cluster.submit("gang", "a", 6, 1)
    (preemption,) = cluster.step().preemptions
    assert sorted(v[0] for v in preemption.victims) == ["b"] * 4 + ["c"] * 2
    cluster = borrowed()
    cluster.shares["a"] = 7
    cluster.submit("gang", "a", 7, 1)
    found = cluster.step()
    assert not found.preemptions, "c would be left with less than its share"
    assert "gang" in found.refusals


def test_a_share_is_asked_for_once() -> None:
    """Two jobs that each fit into a share, and not together, do not both have room made for them."""
    cluster = borrowed()
    for n in range(2):
        cluster.submit(f"ask{n}", "a", 3, 1)
    assert [p.job_id for p in cluster.step().preemptions] == ["ask0"]
    assert not cluster.step().preemptions


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stoppable": False}, "it has not run for long enough, or would lose more than time"),
        ({"draining": True}, "it stops already"),
    ],
)
def test_work_that_may_not_be_stopped_is_not_asked(change: dict[str, bool], why: str) -> None:
    task = RunningTask(
        job_id="b",
        host_id="h0",
        project="b",
        priority=50,
        devices=2,
        cpu_slots=0,
        memory_bytes=0,
        ran_seconds=900.0,
        stoppable=True,
    )
    cluster = Cluster([2], {"a": 2})
    cluster.submit("ask", "a", 1, 2)
    full = [msgspec.structs.replace(c, free_devices=()) for c in cluster.capacities()]
    shares = {"a": Share(gpus=2), "b": Share(held_gpus=2)}

    def plan(running: RunningTask) -> AdmissionPlan:
        return plan_admission(cluster.waiting, full, {}, shares=shares, running=[running])

    assert [p.victims for p in plan(task).preemptions] == [("b",)]
    assert not plan(msgspec.structs.replace(task, **change)).preemptions, why


def test_a_more_important_job_that_borrows_takes_nothing_of_a_share() -> None:
    """Else the share would be asked back at once, and both would take turns."""
    running = [
        RunningTask(
            job_id=f"{project}{n}",
            host_id="h0",
            project=project,
            priority=10,
            devices=1,
            cpu_slots=0,
            memory_bytes=0,
            ran_seconds=900.0,
            stoppable=True,
            preemptible=True,
        )
        for project, n in (("a", 1), ("a", 2), ("b", 1))
    ]
    full = [msgspec.structs.replace(c, free_devices=()) for c in Cluster([3], {}).capacities()]

    def victims(asker: str, tasks: int) -> list[tuple[str, ...]]:
        waits = Cluster([3], {})
        waits.submit("ask", asker, tasks, 1, priority=90)
        shares = {"a": Share(gpus=2, held_gpus=2), "b": Share(held_gpus=1), "c": Share()}
        found = plan_admission(
            waits.waiting, full, {}, shares=shares, running=running, lowest_preemptible=10
        )
        return [p.victims for p in found.preemptions]

    assert victims("c", 1) == [("b1",)]
    assert victims("c", 2) == []
    assert victims("a", 2) == [("a1", "a2")], "its own less important jobs, as without shares"


def test_jobs_without_gpus_go_by_cpu_slots() -> None:
    tasks = [
        RunningTask(
            job_id=f"b{n}",
            host_id="h",
            project="b",
            priority=50,
            devices=0,
            cpu_slots=1,
            memory_bytes=0,
            ran_seconds=900.0 + n,
            stoppable=True,
        )
        for n in range(4)
    ]
    full = Capacity(
        host_id="h",
        name="h",
        incarnation="i",
        queues=frozenset(),
        free_cpu_slots=0,
        free_memory_bytes=0,
        free_devices=(0, 1),
    )
    ask = Candidate(
        job_id="ask",
        epoch=0,
        queue="q",
        project="a",
        priority=1,
        tasks=1,
        gpus=0,
        cpu_slots=2,
        memory_bytes=0,
    )
    shares = {"a": Share(cpu_slots=2), "b": Share(cpu_slots=1, held_cpu_slots=4)}
    found = plan_admission([ask], [full], {}, shares=shares, running=tasks)
    assert [p.victims for p in found.preemptions] == [("b0", "b1")]
    shares = {"a": Share(gpus=2), "b": Share(cpu_slots=1, held_cpu_slots=4)}
    assert not plan_admission([ask], [full], {}, shares=shares, running=tasks).preemptions
