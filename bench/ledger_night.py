"""A simulated night of a small fleet on the real store: jobs and gangs that load, step, save, wait,
stall and fail, executors that run calls of a function, hosts that are set aside, a pool that rents
machines and gives them back or loses them, and a leader that dies every half hour.

Time is told to the store, chance is seeded. The night keeps its own book of leases and offers, by
which the ledger is checked.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import msgspec

from holdfast.core.calls.executors import app_label, make_executor_spec
from holdfast.core.calls.values import FunctionSpec, find_family
from holdfast.core.causes import Watchdog
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.drain import plan_completion
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.close_minutes import close_span
from holdfast.core.ledger.tally import TallyClock
from holdfast.core.ledger.values import LedgerName
from holdfast.core.placement.plan import plan_admission
from holdfast.core.retry import RetryPolicy
from holdfast.core.spec import JobSpec
from holdfast.core.states import HostEvent, InstanceEvent
from holdfast.moves.values import HostSync, HostSynced, NewJob
from holdfast.store.postgres.calls.values import ExecutorTurn
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import HostFacts
from holdfast.wire.calls import Batch, BatchEnds, CallEnd, ExecutorReport

EVENING = datetime(2026, 3, 1, 20, 0, 0, 417_000, tzinfo=UTC)
TURN_SECONDS = 13.371
GPUS = 8
OFFER = Offer(name="rented", gpus=GPUS, cpu_slots=16, usd_per_hour=9.0)
STOPPED = TaskFacts(signal=15, stopped=True)
FUNCTION = FunctionSpec(function="night:embed", gpus=1)
FAMILY = find_family(FUNCTION, "gpu")
MAX_EXECUTORS, MAX_RENTED = 6, 2
JOIN, REST = timedelta(minutes=4), timedelta(minutes=3)
"""How long a machine takes to serve; how long an executor or a machine is idle before it is given back."""


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
    family: str = ""
    """Of an executor: the family whose calls it runs."""
    batches: list[Batch] = []
    idle_since: datetime | None = None


class Rental(msgspec.Struct, kw_only=True):
    """A rented machine: when it was made, served, was drained, and was gone."""

    made: datetime
    served: datetime | None = None
    drained: datetime | None = None
    ended: datetime | None = None
    gone: datetime | None = None


class Night:
    """The fleet, and the book of what it was used for."""

    def __init__(self, dsn: str, hosts: int, seed: int) -> None:
        self.dsn, self.chance = dsn, random.Random(seed)
        self.store = PostgresStore(dsn)
        self.now = EVENING
        self.hosts = {f"own-{n}": EVENING for n in range(hosts)}
        self.rented: dict[str, Rental] = {}
        self.host_ms: Counter[str] = Counter()  # of leases, on each host
        self.executor_ms = self.calls = self.lost_machines = 0
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
            name=host,
            cpu_slots=16,
            gpus=[Gpu(index=i) for i in range(GPUS)],
            memory_bytes=1 << 40,
            labels={app_label(FAMILY.app): "yes"},
        )
        key = host.encode().ljust(32, b".")
        await self.store.hosts.register_host(host, key, "incarnation-1", facts, now=self.now)

    async def turn(self) -> None:
        """Live through one turn: what tasks do, what the leader does, and what befalls hosts."""
        self.now += timedelta(seconds=TURN_SECONDS)
        await self._submit()
        await self._befall()
        await self._cycle()
        for key in list(self.tasks):
            if key in self.tasks and not self.tasks[key].family:
                await self._work(key)
        await self._call()
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
        if self.chance.random() < 0.02:
            count = self.chance.randrange(20, 200)
            args = [str(n) for n in range(count)]
            name = f"set-{self.jobs}-{self.calls}"
            await self.store.calls.create_set(
                name, FUNCTION, "gpu", count=count, args=args, now=self.now
            )

    async def _befall(self) -> None:
        """Set a host aside or let it back."""
        roll = self.chance.random()
        host = self.chance.choice(sorted(h for h in self.hosts if h not in self.rented))
        state = (await self.store.hosts.get_host(host)).state
        if roll < 0.004 and state == "active":
            event = self.chance.choice((HostEvent.QUARANTINE, HostEvent.DRAIN))
            await self.store.hosts.move_host(host, event, "a fault of the night", now=self.now)
        elif roll < 0.06 and state in ("quarantined", "draining"):
            event = HostEvent.RELEASE if state == "quarantined" else HostEvent.UNDRAIN
            await self.store.hosts.move_host(host, event, "mended", now=self.now)

    # ---- the pool

    async def _cycle(self) -> None:
        """Rent a machine, whose agent comes minutes later; drain an idle one, and end it a turn
        later; seldom, lose one with all that runs on it."""
        present = [host for host, rental in self.rented.items() if rental.gone is None]
        if len(present) < MAX_RENTED and self.chance.random() < 0.02:
            await self._rent(f"rented-{len(self.rented)}")
        for host in present:
            rental = self.rented[host]
            mine = [key for key, task in self.tasks.items() if task.host == host]
            if rental.served is None:
                if self.now - rental.made > JOIN:
                    await self._register(host)
                    await self.store.fleet.promote_host(host, "it passed its checks", now=self.now)
                    rental.served = self.hosts[host] = self.now
            elif self.chance.random() < 0.002 or rental.ended is not None:
                await self._lose(host, mine)
            elif rental.drained is not None:
                await self.store.fleet.want_end(host, "its pool shrinks", now=self.now)
                await self.store.fleet.note_end_asked(host, now=self.now)
                rental.ended = self.now
            elif self.now - self.hosts[host] > REST and await self.store.fleet.drain_if_idle(
                host, 0, 60.0, "its pool shrinks", now=self.now
            ):
                rental.drained = self.now

    async def _rent(self, host: str) -> None:
        pool = PoolSpec(name="pool", provider="local", offers=(OFFER,), max=4)
        await self.store.fleet.put_pool(pool, now=self.now)
        await self.store.fleet.intend("pool", OFFER, [host], "jobs wait", now=self.now)
        self.now += timedelta(seconds=0.613)  # the provider takes a moment, which costs nothing
        await self.store.fleet.ask(host, host, host.encode().ljust(32, b"."), 600.0, now=self.now)
        await self.store.fleet.note_made(host, f"m-{host}", now=self.now)
        self.rented[host] = Rental(made=self.now)

    async def _lose(self, host: str, mine: list[TaskKey]) -> None:
        """Let a machine be gone, and what ran there with it."""
        self.rented[host].gone = self.now
        del self.hosts[host]
        await self.store.fleet.note_gone(host, InstanceEvent.VANISH, "it is gone", now=self.now)
        await self.store.fleet.free_host(host, "it is gone", now=self.now)
        self.lost_machines += bool(mine)
        for key in mine:
            self._note_end(key)
        for key in mine:
            for other in [k for k in self.tasks if k.job_id == key.job_id]:
                await self._end(other, STOPPED)

    # ---- calls

    async def _call(self) -> None:
        """Submit executors where calls wait, and let those that run do their calls."""
        ready = sum(feed.ready for feed in await self.store.calls.read_feeds(now=self.now))
        running = sum(bool(task.family) for task in self.tasks.values())
        if ready and running < MAX_EXECUTORS and self.chance.random() < 0.3:
            self.jobs += 1
            spec = msgspec.structs.replace(make_executor_spec(FAMILY), priority=70)
            job = NewJob(id=f"exec-{self.jobs:04d}", spec=spec, queue="gpu")
            await self.store.jobs.submit_jobs([job], now=self.now)
        for key, task in list(self.tasks.items()):
            if task.family and task.started is not None and key in self.tasks:
                await self._exchange(key, task)

    async def _exchange(self, key: TaskKey, task: Running) -> None:
        """Let an executor end the calls that it held and take more; one that had none for minutes ends."""
        ends = [
            BatchEnds(batch.id, [CallEnd(n, False, 1.0, "1") for n in range(len(batch.calls))])
            for batch in task.batches
        ]
        report = ExecutorReport(key=key, held=[b.id for b in task.batches], ends=ends, want=8)
        turn = ExecutorTurn(
            host_id=task.host, incarnation="incarnation-1", family=FAMILY.name, report=report
        )
        (answer,) = await self.store.calls.exchange([turn], now=self.now)
        self.calls += sum(len(batch.calls) for batch in task.batches)
        task.batches = list(answer.batches)
        if task.batches:
            task.idle_since = None
            self._count(task, LedgerName.UNMEASURED_BUSY)
        else:
            task.idle_since = task.idle_since or self.now
            self._count(task, LedgerName.UNMEASURED_IDLE)
        if task.idle_since and self.now - task.idle_since > REST:
            await self._end(key, TaskFacts(exit_code=0, runtime_seconds=9.0))
        elif self.chance.random() < 0.004:
            await self._fail(key, TaskFacts(exit_code=1))
        elif self.now - task.told_at > timedelta(seconds=60):
            await self._tell(key, task)

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
            await self._tell(key, task)

    async def _tell(self, key: TaskKey, task: Running) -> None:
        task.told_at = self.now
        told = ((key, task.clock.tally),)
        await self._sync(task.host, live=(key,), started=(key,), tallies=told)

    async def _end(self, key: TaskKey, facts: TaskFacts) -> None:
        task = self.tasks[key]
        self._count(task, LedgerName.DRAINING)
        facts = msgspec.structs.replace(facts, tally=task.clock.tally)
        await self._sync(task.host, ended=((key, facts),))
        self._note_end(key)

    def _note_end(self, key: TaskKey) -> None:
        """Write into the book how long a lease was held."""
        task = self.tasks.pop(key)
        ms = (to_whole_ms(self.now) - to_whole_ms(task.begun)) * task.gpus
        self.leased_ms[key.job_id] += ms
        self.host_ms[task.host] += ms
        self.executor_ms += ms if task.family else 0
        if task.host in self.hosts:
            self.hosts[task.host] = self.now

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
            family = (await self.store.jobs.get_job(job_id)).spec.executor
            for record in await self.store.jobs.list_tasks(job_id):
                self._place(record.key, str(record.host_id), len(record.devices), family)
        await self._start()

    def _place(self, key: TaskKey, host: str, gpus: int, family: str) -> None:
        clock = TallyClock().count(self._ms(), LedgerName.SETTING_UP)
        # A gang's ranks end together, so their work is chance of the job.
        work = random.Random(f"{key.job_id} {key.epoch}").uniform(600, 5400)
        first = self.steps.get(key.job_id, 0) + 1
        self.tasks[key] = Running(
            host=host,
            begun=self.now,
            gpus=gpus,
            left=work,
            step_from=first,
            clock=clock,
            family=family,
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
        own = sum(host not in self.rented for host in self.hosts)
        whole = own * GPUS * (to_whole_ms(self.now) - to_whole_ms(EVENING))
        return whole + sum(sum(self.find_rental(host).values()) for host in self.rented)

    def find_rental(self, host: str) -> dict[str, int]:
        """Return a rented machine's milliseconds × GPUs from the book: starting, leased, draining, and
        the rest unused."""
        rental, now = self.rented[host], self.now
        served = rental.served or rental.gone or now
        drained = rental.drained or rental.gone or now
        gone = rental.gone or now
        starting, serving, draining = (
            (to_whole_ms(until) - to_whole_ms(since)) * GPUS
            for since, until in ((rental.made, served), (served, drained), (drained, gone))
        )
        leased = self.host_ms[host]
        return {
            "starting": starting,
            "leased": leased,
            "draining": draining,
            "unused": serving - leased,
        }


def to_whole_ms(at: datetime) -> int:
    """An instant in whole milliseconds, rounded down as the ledger does."""
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
