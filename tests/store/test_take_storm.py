"""Hosts that take and end jobs, users that cancel and read, and agents that are replaced, all at once
on two controllers: every job ends, and none runs twice at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from itertools import cycle

import pytest

from holdfast.core.ids import TaskKey
from holdfast.moves.values import HostSynced, JobFilter
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.rig import OK, STOPPED, Rig
from tests.waits import within

HOSTS = ("h1", "h2", "h3")
JOBS = 120
LOST_ANSWERS = 0.05
PATIENCE_SECONDS = 120.0


class SimulatedHost:
    """A host of twelve slots whose jobs have mostly ended by its next sync."""

    def __init__(self, name: str, others: list[SimulatedHost], dice: random.Random) -> None:
        self.name, self.others, self.dice = name, others, dice
        self.running: set[TaskKey] = set()
        self.stopped: set[TaskKey] = set()
        self.acked: list[TaskKey] = []
        self.agent = asyncio.Lock()  # one at a time speaks for the host
        others.append(self)

    async def replace_agent(self, rig: Rig) -> None:
        """Be a new agent, with nothing of the old one left."""
        async with self.agent:
            self.running.clear()
            self.stopped.clear()
            await rig.host(self.name, slots=12)

    async def sync(self, rig: Rig) -> None:
        """Say what ended, and begin what the answer says, if it arrives."""
        async with self.agent:
            await self._sync(rig)

    async def _sync(self, rig: Rig) -> None:
        held = sorted(self.running | self.stopped)  # CMD-3: also what it never began
        over = [key for key in held if key in self.stopped or self.dice.random() < 0.7]
        ended = [(key, STOPPED if key in self.stopped else OK) for key in over]
        live = [key for key in held if key not in over]
        answer = await rig.sync(self.name, live=live, ended=ended, takes=True)
        assert answer.status == "ok"
        if self.dice.random() >= LOST_ANSWERS:
            self._hear(answer)

    def _hear(self, answer: HostSynced) -> None:
        self.acked += answer.acked
        gone = {*answer.acked, *answer.refused, *answer.lost}
        self.running -= gone
        self.stopped = self.stopped - gone | {stop.key for stop in answer.preempts}
        for offer in answer.offers:
            job_id = offer.task.key.job_id
            for other in self.others:
                beside = [key for key in other.running if key.job_id == job_id]
                assert beside in ([], [offer.task.key]), f"{job_id} runs already: {beside}"
            self.running.add(offer.task.key)


@pytest.fixture
async def two_rigs(pg_emptied: str) -> AsyncIterator[list[Rig]]:
    """Two controllers on one database."""
    rigs = [Rig(PostgresStore(pg_emptied, max_connections=6)) for _ in range(2)]
    for rig in rigs:
        assert isinstance(rig.store, PostgresStore)
        await rig.store.open()
    rigs[1].now, rigs[1].incarnations = rigs[0].now, rigs[0].incarnations
    yield rigs
    for rig in rigs:
        assert isinstance(rig.store, PostgresStore)
        await rig.store.close()


async def use(rig: Rig, dice: random.Random) -> None:
    """Do what users do, or the leader's loops."""
    store, job_id = rig.store, f"job-{dice.randrange(JOBS)}"
    match dice.randrange(6):
        case 0:
            await store.jobs.cancel_job(job_id, "enough", now=rig.now)
        case 1:
            assert (await store.jobs.get_job(job_id)).id == job_id
        case 2:
            await store.jobs.list_jobs(JobFilter(states=("reserved", "running"), limit=50))
        case 3:
            await store.leases.lapse_leases(rig.now, now=rig.now)
        case 4:
            await rig.complete()
        case 5:
            ids = [f"job-{dice.randrange(JOBS)}" for _ in range(5)]
            assert {*(await store.jobs.cancel_jobs(ids, "enough", now=rig.now)).jobs} == {*ids}


async def count_left(tx: Tx) -> dict[str, int]:
    found = await tx.conn.execute(
        """select (select count(*) from tasks) as tasks, (select count(*) from jobs where ended_at is null) as jobs,
                  (select count(*) from jobs j where state = 'succeeded' and 1 <> (
                     select count(*) from attempts a where a.job_id = j.id and a.outcome = 'succeeded')) as odd"""
    )
    return dict((await found.fetchall())[0])


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_jobs_that_hosts_take_end_once_whatever_goes_on_beside(
    two_rigs: list[Rig], seed: int
) -> None:
    dice = random.Random(seed)
    turn: Iterator[Rig] = cycle(two_rigs)
    hosts: list[SimulatedHost] = []
    for name in HOSTS:
        await two_rigs[0].host(name, slots=12)
        SimulatedHost(name, hosts, random.Random(f"{seed}{name}"))
    for number in range(JOBS):
        await two_rigs[0].submit(f"job-{number}")
    over = asyncio.Event()

    async def work(host: SimulatedHost) -> None:
        while not over.is_set():
            await host.sync(next(turn))

    async def replace() -> None:
        for name in (*HOSTS, *HOSTS):
            await asyncio.sleep(0.1)
            await hosts[HOSTS.index(name)].replace_agent(two_rigs[0])

    async def live() -> None:
        while await two_rigs[0].store.jobs.count_jobs():
            await use(next(turn), dice)
            # Retries, however long they were to wait.
            await two_rigs[0].store.admission.release_due(now=two_rigs[0].now + timedelta(days=1))
        over.set()

    async with within(PATIENCE_SECONDS), asyncio.TaskGroup() as group:
        for work_of in (*(work(host) for host in hosts), replace(), live()):
            group.create_task(work_of)
    acked = [key for host in hosts for key in host.acked]
    assert len(acked) == len(set(acked))
    assert isinstance(two_rigs[0].store, PostgresStore)
    left = await two_rigs[0].store.session.single(count_left)
    assert left == {"tasks": 0, "jobs": 0, "odd": 0}
