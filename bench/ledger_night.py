"""A simulated night of a small fleet on the real store: jobs and gangs that load, step, save, wait,
stall and fail, hosts that are set aside and rented, and a leader that dies every half hour.

Time is told to the store, chance is seeded. The night keeps its own book of leases and offers, by
which the ledger is checked.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.core.causes import Watchdog
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.drain import plan_completion
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.close import close_span
from holdfast.core.ledger.tally import TallyClock
from holdfast.core.ledger.values import LedgerName
from holdfast.core.placement.plan import plan_admission
from holdfast.core.retry import RetryPolicy
from holdfast.core.spec import JobSpec
from holdfast.core.states import HostEvent
from holdfast.moves.values import HostSync, HostSynced, NewJob
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import HostFacts

EVENING = datetime(2026, 3, 1, 20, 0, 0, 417_000, tzinfo=UTC)
TURN_SECONDS = 13.371
GPUS = 8
OFFER = Offer(name="rented", gpus=GPUS, cpu_slots=16, usd_per_hour=9.0)
STOPPED = TaskFacts(signal=15, stopped=True)


class Running(msgspec.Struct, kw_only=True):
    """A task on a simulated host. left: seconds of its work; step_from: where its attempt began."""

    host: str
    begun: datetime
    gpus: int
    left: float
    step_from: int
    clock: TallyClock
    started: datetime | None = None
    told_at: datetime = EVENING
    steps: float = 0.0
    silent: bool = False
    silent_since: datetime | None = None


class Night:
    """The fleet, and the book of what it was used for."""

    def __init__(self, dsn: str, hosts: int, seed: int) -> None:
        self.dsn, self.chance = dsn, random.Random(seed)
        self.store = PostgresStore(dsn)
        self.now = EVENING
        self.hosts = {f"own-{n}": EVENING for n in range(hosts)}
        self.rented: dict[str, datetime] = {}  # when each was made
        self.tasks: dict[TaskKey, Running] = {}
        self.steps: dict[str, int] = {}  # what each job has saved
        self.leased_ms: Counter[str] = Counter()
        self.jobs = self.deaths = self.failures = 0
        self.close_seconds: list[float] = []

    async def begin(self) -> None:
        """Register the hosts."""
        await self.store.open()
        for host in self.hosts:
            await self._register(host)
        await self.close_minutes()

    async def _register(self, host: str) -> None:
        facts = HostFacts(
            name=host, cpu_slots=16, gpus=[Gpu(index=i) for i in range(GPUS)], memory_bytes=1 << 40
        )
        key = host.encode().ljust(32, b".")
        await self.store.hosts.register_host(host, key, "incarnation-1", facts, now=self.now)

    async def turn(self) -> None:
        """Live through one turn: what tasks do, what the leader does, and what befalls hosts."""
        self.now += timedelta(seconds=TURN_SECONDS)
        await self._submit()
        await self._befall()
        for key in list(self.tasks):
            if key in self.tasks:
                await self._work(key)
        await self._lead()

    async def _submit(self) -> None:
        if self.chance.random() < 0.12:
            self.jobs += 1
            gang = self.chance.random() < 0.3
            spec = JobSpec(
                argv=("train",),
                gpus=self.chance.choice((4, 8)) if gang else self.chance.choice((1, 1, 2, 4)),
                tasks=self.chance.choice((2, 4)) if gang else 1,
                labels={"team": self.chance.choice(("red", "blue"))},
            )
            job = NewJob(id=f"night-{self.jobs:04d}", spec=spec, queue="gpu")
            await self.store.jobs.submit_jobs([job], now=self.now)

    async def _befall(self) -> None:
        """Set a host aside or let it back; rent a machine, whose agent comes minutes later."""
        roll = self.chance.random()
        host = self.chance.choice(sorted(self.hosts))
        state = (await self.store.hosts.get_host(host)).state
        if roll < 0.004 and state == "active":
            event = self.chance.choice((HostEvent.QUARANTINE, HostEvent.DRAIN))
            await self.store.hosts.move_host(host, event, "a fault of the night", now=self.now)
        elif roll < 0.06 and state in ("quarantined", "draining"):
            event = HostEvent.RELEASE if state == "quarantined" else HostEvent.UNDRAIN
            await self.store.hosts.move_host(host, event, "mended", now=self.now)
        elif roll > 0.995 and len(self.rented) < 2:
            await self._rent(f"rented-{len(self.rented)}")
        for made in [h for h, at in self.rented.items() if h not in self.hosts]:
            if self.now - self.rented[made] > timedelta(minutes=4):
                await self._register(made)
                await self.store.fleet.promote_host(made, "it passed its checks", now=self.now)
                self.hosts[made] = self.rented[made]

    async def _rent(self, host: str) -> None:
        pool = PoolSpec(name="pool", provider="local", offers=(OFFER,), max=4)
        await self.store.fleet.put_pool(pool, now=self.now)
        await self.store.fleet.intend("pool", OFFER, [host], "jobs wait", now=self.now)
        await self.store.fleet.ask(host, host, host.encode().ljust(32, b"."), 600.0, now=self.now)
        await self.store.fleet.note_made(host, f"m-{host}", now=self.now)
        self.rented[host] = self.now

    # ---- hosts

    async def _sync(self, host: str, **said: tuple[object, ...]) -> HostSynced:
        sync = HostSync(host_id=host, incarnation="incarnation-1", **said)  # type: ignore[arg-type]  # its fields
        return (await self.store.leases.sync_hosts([sync], now=self.now))[0]

    def _count(self, task: Running, name: LedgerName) -> None:
        task.clock = task.clock.count(self._ms(), name)

    def _ms(self) -> int:
        return round((self.now - EVENING).total_seconds() * 1000)

    async def _work(self, key: TaskKey) -> None:
        """Let a task do its part of the turn, and its host tell of it."""
        task, roll = self.tasks[key], self.chance.random()
        if task.started is None:
            return
        if task.silent:
            if task.silent_since and self.now - task.silent_since > timedelta(minutes=5):
                task.clock = task.clock.stall(self._ms())
                trip = Trip(watchdog=Watchdog.STALL, exit_code=76, reason="silent for 300 s")
                await self._fail(key, TaskFacts(signal=9, trip=trip))
            return
        if not task.clock.tally.beaten:
            if self.now - task.started > timedelta(seconds=90):
                task.clock = task.clock.beat(self._ms(), task.step_from, LedgerName.KEPT)
            return
        task.left -= TURN_SECONDS
        task.steps += TURN_SECONDS / 2
        step = task.step_from + int(task.steps)
        doing = LedgerName.KEPT
        if roll < 0.05:
            doing, self.steps[key.job_id] = LedgerName.CHECKPOINTING, step
        elif roll < 0.10:
            doing = LedgerName.WAITING
        elif roll < 0.13:
            doing = LedgerName.IDLE
        task.clock = task.clock.beat(self._ms(), step, doing)
        if task.left <= 0:
            await self._end(key, TaskFacts(exit_code=0, runtime_seconds=9.0))
        elif roll > 0.999:
            await self._fail(key, TaskFacts(exit_code=1))
        elif roll > 0.998:
            task.silent, task.silent_since = True, self.now
        elif self.now - task.told_at > timedelta(seconds=60) and self.chance.random() < 0.9:
            task.told_at = self.now
            told = ((key, task.clock.tally),)
            await self._sync(task.host, live=(key,), started=(key,), tallies=told)

    async def _end(self, key: TaskKey, facts: TaskFacts) -> None:
        task = self.tasks.pop(key)
        self._count(task, LedgerName.DRAINING)
        facts = msgspec.structs.replace(facts, tally=task.clock.tally)
        await self._sync(task.host, ended=((key, facts),))
        ms = to_whole_ms(self.now) - to_whole_ms(task.begun)
        self.leased_ms[key.job_id] += ms * task.gpus

    async def _fail(self, key: TaskKey, facts: TaskFacts) -> None:
        self.failures += 1
        await self._end(key, facts)
        for other in [k for k in self.tasks if k.job_id == key.job_id]:
            await self._end(other, STOPPED)

    # ---- the leader

    async def _lead(self) -> None:
        policy = Policy(retry=RetryPolicy(max_retries=5, retry_delay=0.0))
        for snap in await self.store.drains.list_drains(100):
            plan = plan_completion(snap.job, snap.tasks, policy, (), chance=0.5)
            if plan is not None:
                await self.store.drains.complete_drain(
                    snap.job.id, snap.job.epoch, plan, at_once=False, now=self.now
                )
        await self.store.admission.release_due(None, now=self.now)
        for host in self.hosts:
            mine = tuple(k for k, t in self.tasks.items() if t.host == host)
            await self._sync(host, live=mine)
        snap = await self.store.admission.read_admission(100, now=self.now)
        found = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas)
        ttls = {p.job_id: 7200.0 for p in found.placements}
        applied, _ = await self.store.leases.reserve_and_offer(
            found.placements, ttls, (), now=self.now
        )
        for job_id in applied:
            for record in await self.store.jobs.list_tasks(job_id):
                self._place(record.key, str(record.host_id), len(record.devices))
        await self._start()

    def _place(self, key: TaskKey, host: str, gpus: int) -> None:
        clock = TallyClock().count(self._ms(), LedgerName.SETTING_UP)
        # A gang's ranks end together, so their work is chance of the job.
        work = random.Random(f"{key.job_id} {key.epoch}").uniform(600, 5400)
        first = self.steps.get(key.job_id, 0) + 1
        self.tasks[key] = Running(
            host=host, begun=self.now, gpus=gpus, left=work, step_from=first, clock=clock
        )

    async def _start(self) -> None:
        for _ in ("claim", "start"):
            for host in self.hosts:
                found = await self._sync(host)
                claimed = tuple((c.key, 0 if c.key.rank else 4711) for c in found.claims)
                if claimed:
                    await self._sync(host, claimed=claimed)
                for offer in found.offers:
                    key = offer.task.key
                    await self._sync(host, live=(key,), started=(key,))
                    self.tasks[key].started = self.now
                    self._count(self.tasks[key], LedgerName.UNMEASURED_BUSY)

    async def close_minutes(self) -> int:
        """Close what is over; return how many minutes that were."""
        minutes = 0
        while (facts := await self.store.ledger.read_span(now=self.now)) is not None:
            await self.store.ledger.write_ledger(facts, close_span(facts))
            minutes += (facts.until_ms - facts.since_ms) // 60_000
        return minutes

    async def die(self) -> None:
        """Let the leader die when it has read a span, and another one begin."""
        self.deaths += 1
        await self.store.ledger.read_span(now=self.now)
        await self.store.close()
        self.store = PostgresStore(self.dsn)
        await self.store.open()

    async def end(self) -> None:
        """End what still runs, and close the night's last minute."""
        for key in list(self.tasks):
            if key in self.tasks:
                await self._end(key, TaskFacts(exit_code=0))
        self.now = self.now.replace(second=0, microsecond=0) + timedelta(minutes=1)
        await self.close_minutes()

    def sum_offered(self) -> int:
        """Milliseconds × GPUs that hosts offered, and machines from the moment they were made."""
        begins = [*(EVENING for h in self.hosts if h not in self.rented), *self.rented.values()]
        return sum((to_whole_ms(self.now) - to_whole_ms(at)) * GPUS for at in begins)


def to_whole_ms(at: datetime) -> int:
    """An instant in whole milliseconds, rounded down as the ledger does."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
