"""The model and the store on PostgreSQL, driven by the same random steps, always show the same."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from operator import attrgetter
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.core.records import TaskRecord
from holdfast.errors import HoldfastError
from holdfast.moves.values import JobFilter, TaskBeat
from holdfast.store.postgres.store import PostgresStore
from tests.model.store import MemoryStore
from tests.store.pg_fixture import PgServer
from tests.store.rig import OK, START, STOPPED, Rig, fails

HOSTS = ("h1", "h2", "h3")
PROJECTS = ("default", "other")
TRIPPED = TaskFacts(
    signal=9,
    trip=Trip(watchdog=Watchdog.STALL, exit_code=76, reason="silent", evidence={"age": 130}),
)
SHUT_DOWN = TaskFacts(signal=15, stopped=True, stop_cause=Cause.HOST_DRAINED)
GIVEN_UP = TaskFacts(exit_code=72, runtime_seconds=3.0)
BROKEN = TaskFacts(exit_code=72, xids=(79,), runtime_seconds=90.0)
ENDS = st.sampled_from(
    [
        OK,
        OK,
        OK,
        fails(3),
        STOPPED,
        TRIPPED,
        SHUT_DOWN,
        TaskFacts(start_error="no such file"),
        TaskFacts(exit_code=0, stopped=True),
        TaskFacts(signal=9, unkillable=True),
        GIVEN_UP,
        BROKEN,
    ]
)
EPOCHS = st.sampled_from([0, 0, 0, 0, 0, -1, 1])
INDEX = st.integers(0, 7)


class Agreement(RuleBasedStateMachine):
    """Every rule does one thing to both stores and compares the answers; `compare` compares all
    that can be seen."""

    server: PgServer

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.database = self.server.take_emptied()
        postgres = PostgresStore(self.server.dsn_of(self.database))
        self.loop.run_until_complete(postgres.open())
        self.memory, self.postgres = Rig(MemoryStore(clock=lambda: START)), Rig(postgres)
        self.jobs: list[str] = []
        self.keys: list[TaskKey] = []

    def teardown(self) -> None:
        self.loop.run_until_complete(self.postgres.store.close())
        self.loop.close()
        self.server.give_back(self.database)

    def both(self, name: str, *args: Any, **options: Any) -> Any:
        """Do one thing to both rigs and check that both answered, or refused, alike."""
        answers = []
        for rig in (self.memory, self.postgres):
            if "." in name:  # a port of the store, and its method
                call, given = attrgetter(name)(rig.store), {**options, "now": rig.now}
            else:
                call, given = getattr(rig, name), options
            try:
                answers.append(plain(self.loop.run_until_complete(call(*args, **given))))
            except HoldfastError as error:
                answers.append((type(error).__name__, error.code, error.message))
        assert answers[0] == answers[1], (name, args, options)
        self.compare()
        return answers[0]

    def compare(self) -> None:
        seen = [self.loop.run_until_complete(view(rig)) for rig in (self.memory, self.postgres)]
        for part in seen[0]:
            assert seen[0][part] == seen[1][part], part
        self.keys = list(
            dict.fromkeys([*self.keys, *(msgspec.convert(k, TaskKey) for k in seen[0]["keys"])])
        )[-24:]

    @initialize()
    def hosts(self) -> None:
        for name in HOSTS:
            self.both("host", name, slots=3, gpus=1)

    @rule(seconds=st.sampled_from([0.5, 5.0, 16.0, 31.0, 120.0, 330.0]))
    def wait(self, seconds: float) -> None:
        for rig in (self.memory, self.postgres):
            rig.tick(seconds)

    @rule(
        tasks=st.sampled_from([1, 1, 1, 2, 3]),
        priority=st.sampled_from([50, 50, 80]),
        late=st.booleans(),
        queue=st.sampled_from(["cpu", "cpu", "gpu"]),
        gpus=st.sampled_from([0, 0, 0, 1]),
        project=st.sampled_from(PROJECTS),
        supervised=st.booleans(),
    )
    def submit(
        self,
        tasks: int,
        priority: int,
        late: bool,
        queue: str,
        gpus: int,
        project: str,
        supervised: bool,
    ) -> None:
        start = (self.memory.now + timedelta(seconds=20)).timestamp() if late else None
        job_id = f"job-{len(self.jobs):04d}"
        self.jobs.append(job_id)
        self.both(
            "submit",
            job_id,
            queue=queue,
            tasks=tasks,
            priority=priority,
            start_at=start,
            gpus=gpus,
            project=project,
            supervised=supervised,
            placement="spread" if supervised else "pack",
        )

    @rule()
    def admit(self) -> None:
        self.both("admit", ttl=60.0)

    @precondition(lambda self: self.count_supervised() < 2)
    @rule(
        hosts=st.integers(2, 3),
        fallen=st.integers(0, 2),
        facts=st.sampled_from([GIVEN_UP, fails(9), TRIPPED, BROKEN]),
    )
    def run_supervised(self, hosts: int, fallen: int, facts: TaskFacts) -> None:
        """A supervised job that runs where there is room, and perhaps has lost members already."""
        job_id = f"job-{len(self.jobs):04d}"
        self.jobs.append(job_id)
        self.both("submit", job_id, tasks=hosts, placement="spread", supervised=True, priority=90)
        self.admit()
        for _ in range(2):  # told, then claimed
            for host in HOSTS:
                tasks = self.tasks_of(job_id, host)
                claims = [
                    (t.key, 4711 if t.rank == 0 else 0)
                    for t in tasks
                    if not t.barrier and t.state == "reserved"
                ]
                self.both("sync", host, claimed=claims)
        for host in HOSTS:
            self.agent_does_its_work(host)
        for rank in range(1, 1 + min(fallen, hosts - 1)):
            for host in HOSTS:
                ended = [(t.key, facts) for t in self.tasks_of(job_id, host) if t.rank == rank]
                if ended:
                    self.both("sync", host, ended=ended)

    def count_supervised(self) -> int:
        found = self.memory.store.state.jobs.values()
        return sum(job.spec.supervised and not job.row.state.terminal for job in found)

    def tasks_of(self, job_id: str, host: str) -> list[TaskRecord]:
        try:
            tasks = self.loop.run_until_complete(self.memory.store.jobs.list_tasks(job_id))
        except HoldfastError:
            return []
        return [task for task in tasks if task.host_id == host and task.state.holds_lease]

    @rule(cap=st.sampled_from([0, 1, 3]))
    def replace(self, cap: int) -> None:
        """What the leader does with the members that fell."""
        self.both("replace", infra_cap=cap, watchdog_cap=cap)

    @rule(seconds=st.sampled_from([0.0, 30.0]))
    def release_members(self, seconds: float) -> None:
        self.both("members.release_members", seconds)

    @precondition(lambda self: self.keys)
    @rule(i=INDEX, cause=st.sampled_from([Cause.START_TIMEOUT, Cause.HOST_DRAINED]))
    def stop_member(self, i: int, cause: Cause) -> None:
        self.both(
            "members.stop_member", self.keys[-1 - i % len(self.keys)], cause, "it does not come up"
        )

    @rule(
        host=st.sampled_from(HOSTS),
        live=st.sets(INDEX, max_size=4),
        started=st.sets(INDEX, max_size=3),
        ended=st.dictionaries(INDEX, ENDS, max_size=3),
        beat=st.booleans(),
        shift=EPOCHS,
        leaving=st.sampled_from([False] * 9 + [True]),
    )
    def sync(
        self,
        host: str,
        live: set[int],
        started: set[int],
        ended: dict[int, TaskFacts],
        beat: bool,
        shift: int,
        leaving: bool,
    ) -> None:
        def key(i: int) -> TaskKey:
            found = self.keys[-1 - i % len(self.keys)] if self.keys else TaskKey("none", 0, 1)
            return msgspec.structs.replace(found, epoch=max(0, found.epoch + shift))

        beats = (
            [TaskBeat(key=key(i), step=i, total=9, age_seconds=float(i)) for i in {*live, *ended}]
            if beat
            else []
        )
        self.both(
            "sync",
            host,
            live=[key(i) for i in sorted(live)],
            started=[key(i) for i in sorted(started)],
            beats=beats,
            ended=[(key(i), facts) for i, facts in sorted(ended.items(), key=lambda x: x[0])],
            leaving=leaving,
        )

    @rule(host=st.sampled_from(HOSTS))
    def agent_does_its_work(self, host: str) -> None:
        """A well-behaved sync: everything that lives here is reported started."""
        tasks = self.loop.run_until_complete(live_keys(self.memory, host))
        self.both("sync", host, live=tasks, started=tasks)

    @rule(host=st.sampled_from(HOSTS), facts=ENDS, takes=st.booleans())
    def agent_ends_one(self, host: str, facts: TaskFacts, takes: bool) -> None:
        tasks = self.loop.run_until_complete(live_keys(self.memory, host))
        ended = [(key, facts) for key in tasks[:1]]
        self.both("sync", host, live=tasks[1:], ended=ended, takes=takes)

    @rule(first=st.integers(0, 3), holds=st.booleans())
    def leader_passes_over(self, first: int, holds: bool) -> None:
        """The leader's word on jobs that may come first: hosts go past them, or do not."""
        passed = self.jobs[-3:][first:] if first < 3 else self.jobs[-64:]
        self.both("admission.note_passed", passed, holds=holds)

    @rule(host=st.sampled_from(HOSTS), new=st.booleans())
    def register(self, host: str, new: bool) -> None:
        self.both("host", host, slots=3, gpus=1, new=new)

    @rule(
        host=st.sampled_from(HOSTS),
        hard=st.booleans(),
        event=st.sampled_from(
            ["drain", "undrain", "undrain", "quarantine", "release", "release", "terminate"]
        ),
    )
    def move_host(self, host: str, event: str, hard: bool) -> None:
        self.both("hosts.move_host", host, event, "asked", hard=hard)

    @precondition(lambda self: self.jobs)
    @rule(i=INDEX, hard=st.booleans())
    def cancel(self, i: int, hard: bool) -> None:
        self.both("jobs.cancel_job", self.jobs[-1 - i % len(self.jobs)], "not needed", hard=hard)

    @precondition(lambda self: self.jobs)
    @rule(i=INDEX)
    def drain(self, i: int) -> None:
        self.both(
            "jobs.drain_job", self.jobs[-1 - i % len(self.jobs)], Cause.PREEMPTED, "room is needed"
        )

    @precondition(lambda self: self.jobs)
    @rule(i=INDEX, counted=st.booleans())
    def revive(self, i: int, counted: bool) -> None:
        self.both("jobs.revive_job", self.jobs[-1 - i % len(self.jobs)], "again", counted=counted)

    @rule(
        retries=st.integers(0, 2),
        delay=st.sampled_from([0.0, 0.0, 10.0, 100.0]),
        told=st.booleans(),
        held=st.sampled_from([None, None, None, "the cluster"]),
        stuck=st.sampled_from([None, 1]),
    )
    def complete(
        self, retries: int, delay: float, told: bool, held: str | None, stuck: int | None
    ) -> None:
        self.both(
            "complete",
            max_retries=retries,
            watchdog_cap=1,
            retry_delay=delay,
            backoff="exponential",
            jitter="deterministic",
            emit_retry_events=told,
            held=held,
            no_progress_limit=stuck,
            start_failure_limit=2,
        )

    @rule(project=st.sampled_from([None, *PROJECTS]), on=st.sampled_from([True, True, False]))
    def switch(self, project: str | None, on: bool) -> None:
        if project is None:
            self.both("settings.write_cluster_settings", {"retries_enabled": on})
        else:
            self.both("settings.put_project", project, {"retries_enabled": on})

    @rule(
        project=st.sampled_from([None, *PROJECTS]),
        jobs=st.sampled_from([None, 0, 1, 3]),
        gpus=st.sampled_from([None, 3]),
    )
    def quota(self, project: str | None, jobs: int | None, gpus: int | None) -> None:
        """Quotas that let every job wait; those that refuse a submission are PostgreSQL's alone."""
        changes = {"quota_jobs": jobs, "quota_gpus": gpus, "quota": "soft"}
        if project is None:
            self.both("settings.write_cluster_settings", changes)
        else:
            self.both("settings.put_project", project, changes)

    @rule(
        project=st.sampled_from([None, *PROJECTS]),
        gpus=st.sampled_from([None, 0, 1]),
        cpu_slots=st.sampled_from([None, 1, 4]),
    )
    def share(self, project: str | None, gpus: int | None, cpu_slots: int | None) -> None:
        changes = {"share_gpus": gpus, "share_cpu_slots": cpu_slots}
        if project is None:
            self.both("settings.write_cluster_settings", changes)
        else:
            self.both("settings.put_project", project, changes)

    @rule(limit=st.sampled_from([None, None, 0, 1]))
    def release(self, limit: int | None) -> None:
        self.both("release", limit)

    @rule()
    def loops(self) -> None:
        self.both("admission.release_due")
        self.both("admission.expire_reservations", 30.0)
        self.both("leases.lapse_leases", START - timedelta(hours=1))
        self.both("hosts.sweep_dead_hosts", 30.0, START - timedelta(hours=1))

    @rule(hard=st.booleans(), pause=st.booleans())
    def pause(self, hard: bool, pause: bool) -> None:
        if pause:
            self.both("settings.pause_queue", "cpu", "asked", hard=hard)
        else:
            self.both("settings.resume_queue", "cpu")

    @rule(limit=st.sampled_from([None, 1, 2]))
    def limit(self, limit: int | None) -> None:
        self.both("set_queue", "cpu", max_running=limit)


def plain(value: object) -> Any:
    """Values as JSON would show them."""
    return msgspec.json.decode(msgspec.json.encode(value))


async def live_keys(rig: Rig, host: str) -> list[TaskKey]:
    return [task.key for task in rig.store.state.live_tasks(host)]


async def view(rig: Rig) -> dict[str, Any]:
    """Everything a user can see."""
    if isinstance(rig.store, MemoryStore):
        state = rig.store.state
        jobs = [state.job_record(job_id) for job_id in sorted(state.jobs, reverse=True)]
    else:
        jobs = await rig.store.jobs.list_jobs(JobFilter(limit=1000))
    tasks = [task for job in jobs for task in await rig.store.jobs.list_tasks(job.id)]
    snapshot = await rig.store.admission.read_admission(100, now=rig.now)
    seen: dict[str, Any] = {
        "jobs": jobs, "tasks": tasks, "keys": [task.key for task in tasks],
        "attempts": [await rig.store.jobs.list_attempts(job.id) for job in jobs],
        "hosts": await rig.store.hosts.list_hosts(include_terminated=True),
        "members": [msgspec.structs.replace(m, seconds=0.0) for m in await rig.store.members.list_members(100)],
        "running": sorted(await rig.store.admission.read_running(now=rig.now), key=lambda t: (t.job_id, t.host_id, t.ran_seconds)),
        # For how long is told by a store's own clock.
        "drains": [msgspec.structs.replace(d, seconds=0.0) for d in await rig.store.drains.list_drains(100)],
        "candidates": snapshot.candidates,
        "quotas": sorted(snapshot.quotas.items()) if any(j.state == "queued" for j in jobs) else [],
        "shares": sorted(snapshot.shares.items()) if any(j.state == "queued" for j in jobs) else [],
        "layers": await rig.store.settings.read_settings(),
        # Where nothing is queued a store may leave these out.
        "headroom": snapshot.headroom if any(j.state == "queued" for j in jobs) else {},
        "room": [msgspec.structs.replace(h, queues=frozenset()) for h in snapshot.hosts]
        if any(j.state == "queued" for j in jobs)
        else [],
        # Within a transaction the order between different jobs is not promised; each job's own order is.
        "events": sorted(({**plain(e), "id": None} for e in await rig.events()), key=lambda e: e["job_id"] or ""),
    }  # fmt: skip
    return {name: plain(part) for name, part in seen.items()}


@pytest.mark.slow
def test_both_stores_agree(pg_server: PgServer) -> None:
    Agreement.server = pg_server
    run_state_machine_as_test(
        Agreement,
        settings=settings(
            max_examples=12,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
