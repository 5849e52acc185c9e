"""What store tests drive a store with: a clock of their own, hosts, and the steps a controller and
its agents take."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.core.endings.decide import Policy
from holdfast.core.endings.drain import plan_completion
from holdfast.core.endings.replace import plan_replacement
from holdfast.core.facts import TaskFacts
from holdfast.core.gpus import Gpu
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement, TaskPlacement, plan_admission
from holdfast.core.placement.takes import TakeTerms
from holdfast.core.records import EventRecord, JobRecord
from holdfast.core.retry import RetryPolicy
from holdfast.core.spec import JobSpec
from holdfast.moves.jobs.requests import Changed
from holdfast.moves.values import HostSync, HostSynced, LogAppend, NewJob, Released, TaskBeat
from holdfast.wire.agent import HostFacts

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OK = TaskFacts(exit_code=0, runtime_seconds=1.5)
RETRY_FIELDS = frozenset(RetryPolicy.__struct_fields__)
STOPPED = TaskFacts(signal=15, stopped=True)


def fails(code: int = 1) -> TaskFacts:
    return TaskFacts(exit_code=code)


@dataclass
class Rig:
    """A store and the time it is told."""

    store: Any  # the store on PostgreSQL, or its model
    now: datetime = START
    incarnations: dict[str, str] = field(default_factory=dict)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def tick(self, seconds: float) -> datetime:
        self.now += timedelta(seconds=seconds)
        return self.now

    async def host(
        self,
        name: str = "h1",
        *,
        slots: int = 8,
        gpus: int = 0,
        queues: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        new: bool = True,
        faults: Sequence[Hindrance] = (),
        held: Sequence[TaskKey] = (),
    ) -> str:
        number = int(self.incarnations.get(name, "inc-00000").split("-")[1]) + (1 if new else 0)
        self.incarnations[name] = f"inc-{number:05d}"
        facts = HostFacts(
            name=f"name-{name}",
            cpu_slots=slots,
            gpus=[Gpu(index=i) for i in range(gpus)],
            queues=list(queues),
            labels=dict(labels or {}),
            memory_bytes=1 << 34,
        )
        await self.store.hosts.register_host(
            name,
            name.encode().ljust(32, b"."),
            self.incarnations[name],
            facts,
            faults=faults,
            held=held,
            now=self.now,
        )
        return name

    async def append_log(
        self,
        host: str,
        key: TaskKey,
        stream: str,
        offset: int,
        data: bytes,
        ended: bool,
        keep_bytes: int,
    ) -> int | None:
        """One append by itself: the stream's size after it, None where it is stale."""
        append = LogAppend(
            key=key, stream=stream, offset=offset, data=data, ended=ended, keep_bytes=keep_bytes
        )
        (size,) = await self.store.logs.append_logs(host, [append], now=self.now)
        return size

    @staticmethod
    def plan(
        job_id: str,
        *seats: TaskPlacement,
        queue: str = "cpu",
        project: str = "default",
        gpus: int = 0,
        epoch: int = 0,
    ) -> JobPlacement:
        """Return a placement of a job that may not be queued like this, or at all."""
        return JobPlacement(
            job_id=job_id,
            epoch=epoch,
            queue=queue,
            project=project,
            gpus=gpus,
            cpu_slots=1,
            memory_bytes=0,
            tasks=seats,
        )

    async def places(self, *job_ids: str) -> list[int]:
        """How many stand before each of these queued jobs."""
        found = await self.store.jobs.queue_places(job_ids)
        return [found[job_id] for job_id in job_ids]

    async def submit(self, job_id: str | None = None, *, queue: str = "cpu", **spec: Any) -> str:
        job_id = job_id or f"job-{next(self._numbers):04d}"
        await self.store.jobs.submit_jobs(
            [NewJob(id=job_id, spec=JobSpec(argv=("true",), **spec), queue=queue)], now=self.now
        )
        return job_id

    async def admit(self, limit: int = 100, ttl: float = 300.0) -> list[str]:
        snap = await self.store.admission.read_admission(limit, now=self.now)
        plan = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas)
        ttls = {p.job_id: ttl for p in plan.placements}
        seated = await self.store.members.seat_members(
            [p for p in plan.placements if p.member], ttls, now=self.now
        )
        starts = [p for p in plan.placements if not p.member]
        return [*seated, *await self.reserve(starts, ttls, now=self.now)]

    async def reserve(
        self, placements: Sequence[JobPlacement], ttls: Any, *, now: Any
    ) -> list[str]:
        """Write placements; no host waits for an answer."""
        return (await self.store.leases.reserve_and_offer(placements, ttls, (), now=now))[0]

    async def replace(self, **policy: Any) -> list[str]:
        """What the leader does with fallen members: the sentence of each decision that was carried
        out."""
        found = [m for m in await self.store.members.list_members(100) if m.fallen]
        plans = [(m.task.key, plan_replacement(m.job, m.task, Policy(**policy), ())) for m in found]
        done = await self.store.members.replace_members(plans, now=self.now)
        return [plan.reason for key, plan in plans if key in done]

    async def supervised(
        self, hosts: Sequence[str] = ("h1", "h2", "h3"), **spec: Any
    ) -> tuple[str, list[TaskKey]]:
        """A supervised job that runs, one rank on each host."""
        for host in hosts:
            await self.host(host, slots=1)
        job_id = await self.submit(tasks=len(hosts), placement="spread", supervised=True, **spec)
        assert job_id in await self.admit()
        tasks = await self.store.jobs.list_tasks(job_id)
        for task in tasks:
            await self.sync(str(task.host_id))
        for task in tasks:
            await self.sync(str(task.host_id), claimed=[(task.key, 4711 if task.rank == 0 else 0)])
        for task in tasks:
            await self.sync(str(task.host_id), live=[task.key], started=[task.key])
        assert (await self.job(job_id)).state == "running"
        return job_id, [task.key for task in tasks]

    async def where(self, job_id: str, rank: int) -> str:
        """The host of a rank."""
        return str((await self.store.jobs.list_tasks(job_id))[rank].host_id)

    def make_sync(self, host: str = "h1", incarnation: str | None = None, **said: Any) -> HostSync:
        return HostSync(
            host_id=host, incarnation=incarnation or self.incarnations.get(host, "inc-none"), **said
        )

    async def terms(self) -> TakeTerms:
        """Hosts may take jobs everywhere, under the settings as they are now."""
        layers = await self.store.settings.read_settings()
        return TakeTerms(
            revision=layers.revision, ttls=dict.fromkeys(layers.queues, 300.0), whole=True
        )

    async def sync(
        self,
        host: str = "h1",
        *,
        live: Sequence[TaskKey] = (),
        started: Sequence[TaskKey] = (),
        ended: Sequence[tuple[TaskKey, TaskFacts]] = (),
        beats: Sequence[TaskBeat] = (),
        leaving: bool = False,
        incarnation: str | None = None,
        claimed: Sequence[tuple[TaskKey, int]] = (),
        faults: Sequence[Hindrance] | None = None,
        takes: bool = False,
        told: Sequence[TaskKey] = (),
    ) -> HostSynced:
        sync = self.make_sync(
            host,
            incarnation,
            live=tuple(live),
            started=tuple(started),
            ended=tuple(ended),
            beats=tuple(beats),
            leaving=leaving,
            claimed=tuple(claimed),
            faults=None if faults is None else tuple(faults),
            takes=takes,
            told=tuple(told),
        )
        terms = await self.terms() if takes else None
        return (await self.store.leases.sync_hosts([sync], terms=terms, now=self.now))[0]

    async def submit_to(self, host: str, job_id: str, *, queue: str = "cpu", **spec: Any) -> Any:
        """Submit a job to a host that waits with room, as far as is known."""
        job = NewJob(id=job_id, spec=JobSpec(argv=("true",), **spec), queue=queue)
        taker = self.make_sync(host, takes=True)
        return await self.store.leases.submit_to_host(job, taker, await self.terms(), now=self.now)

    async def key(self, job_id: str, rank: int = 0) -> TaskKey:
        tasks = await self.store.jobs.list_tasks(job_id)
        return tasks[rank].key

    async def offered(self, host: str = "h1", **spec: Any) -> tuple[str, TaskKey]:
        """A job that a host with room was offered, and has not said to run."""
        job_id = await self.submit(**spec)
        assert job_id in await self.admit()
        key = await self.key(job_id)
        assert key in [o.task.key for o in (await self.sync(host)).offers]
        return job_id, key

    async def running(
        self, job_id: str | None = None, host: str = "h1", **spec: Any
    ) -> tuple[str, TaskKey]:
        """A job that runs on a host with room, offered and started."""
        job_id = await self.submit(job_id, **spec)
        assert job_id in await self.admit()
        key = await self.key(job_id)
        offered = await self.sync(host)
        assert key in [o.task.key for o in offered.offers]
        await self.sync(host, live=[key], started=[key])
        assert (await self.job(job_id)).state == "running"
        return job_id, key

    async def running_gang(
        self, tasks: int, host: str = "h1", **spec: Any
    ) -> tuple[str, list[TaskKey]]:
        """A gang that runs on one host: reserved, offered at once (GANG-1; a supervised job's ranks
        are claimed before), started."""
        job_id = await self.submit(tasks=tasks, **spec)
        assert job_id in await self.admit()
        keys = [task.key for task in await self.store.jobs.list_tasks(job_id)]
        offered = await self.sync(host)
        assert bool(offered.claims) is bool(spec.get("supervised"))
        if offered.claims:
            assert [claim.key for claim in offered.claims] == keys
            kept = [(key, 4711 if key.rank == 0 else 0) for key in keys]
            offered = await self.sync(host, claimed=kept)
        assert [offer.task.key for offer in offered.offers] == keys
        await self.sync(host, live=keys, started=keys)
        assert (await self.job(job_id)).state == "running"
        return job_id, keys

    async def complete(
        self, *, chance: float = 0.0, at_once: bool = False, **policy: Any
    ) -> list[str]:
        """Complete every drain that is ready. `policy`: fields of the policy and of its
        `RetryPolicy`; no delay unless said."""
        retry = RetryPolicy(
            **{"retry_delay": 0.0, **{k: v for k, v in policy.items() if k in RETRY_FIELDS}}
        )
        others = {name: value for name, value in policy.items() if name not in RETRY_FIELDS}
        done = []
        for snap in await self.store.drains.list_drains(100):
            plan = plan_completion(
                snap.job, snap.tasks, Policy(retry=retry, **others), (), chance=chance
            )
            assert plan is not None
            if await self.store.drains.complete_drain(
                snap.job.id, snap.job.epoch, plan, at_once=at_once, now=self.now
            ):
                done.append(snap.job.id)
        return done

    async def release(self, retry_limit: int | None = None) -> Released:
        """What the leader does with waiting jobs at every tick."""
        return await self.store.admission.release_due(retry_limit, now=self.now)

    async def fail(
        self, job_id: str, facts: TaskFacts | None = None, *, host: str = "h1", **policy: Any
    ) -> JobRecord:
        """Admit a queued job, run it, and have it fail and be decided."""
        await self.admit()
        key = await self.key(job_id)
        await self.sync(host)
        await self.sync(host, live=[key], started=[key])
        await self.sync(host, ended=[(key, facts or fails())])
        assert job_id in await self.complete(**policy)
        return await self.job(job_id)

    async def cancel_many(self, job_ids: Sequence[str], hard: bool) -> dict[str, str]:
        """What became of each."""
        return _outline(
            await self.store.jobs.cancel_jobs(job_ids, "not needed", hard=hard, now=self.now)
        )

    async def revive_many(self, job_ids: Sequence[str], counted: bool) -> dict[str, str]:
        """What became of each."""
        reasons = {job_id: f"{job_id} again" for job_id in job_ids}
        return _outline(await self.store.jobs.revive_jobs(reasons, counted=counted, now=self.now))

    async def set_queue(self, name: str, **changes: Any) -> dict[str, Any]:
        return (await self.store.settings.put_queue(name, changes, now=self.now)).settings

    async def job(self, job_id: str) -> JobRecord:
        return await self.store.jobs.get_job(job_id)

    async def events(self, job_id: str | None = None) -> list[EventRecord]:
        found: list[EventRecord] = []
        while page := await self.store.events.read_events(
            found[-1].id if found else None, limit=50, job_id=job_id
        ):
            found += page
        return found

    async def kinds(self, job_id: str | None = None) -> list[str]:
        return [event.kind for event in await self.events(job_id)]


def _outline(done: Changed) -> dict[str, str]:
    said = {job_id: f"{job.state} {job.reason}" for job_id, job in done.jobs.items()}
    return said | {job_id: error.message for job_id, error in done.refused.items()}
