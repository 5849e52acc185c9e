"""Jobs whose GPUs do nothing → told of, and where their project wants it, stopped and queued
again."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.report.sums import find_idle_policy, read_prices
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.core.causes import Cause
from holdfast.core.ledger.values import LedgerName, LedgerSum
from holdfast.core.records import JobRecord
from holdfast.core.report.idle import IdleGpus, IdleLook, Then, decide_idle, say_idle, take_look
from holdfast.core.report.money import HOUR_MS, Prices
from holdfast.core.states import JobState
from holdfast.core.webhooks.notices import IDLE_GPUS
from holdfast.moves.rows import NewEvent

log = logging.getLogger("holdfast.loops")
LONGEST_LOOK = timedelta(hours=1)
MOST_RANKS = 4096
SHORTEST_LOOK = timedelta(seconds=60)
_HOLDING = (JobState.RESERVED, JobState.RUNNING)


class IdleGpusLoop(Loop):
    """Looks each minute at what the ledger tells of running jobs (HELD-1…3)."""

    name = "idle_gpus"
    interval_seconds = 60.0

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._looked_at: datetime | None = None

    async def run_once(self) -> Summary:
        controller, store = self._controller, self._controller.store
        settings = await controller.settings.current()
        known = {one.job_id: one for one in await store.money.read_idle_gpus()}
        until = await store.money.read_closed()
        if until is None:
            return {}
        since = self._begin_look(known.values(), until)
        if since >= until:
            return {}
        sums = await store.ledger.read_sums(since, until, by=("job", "host"), unit="gpu")
        prices = await read_prices(store)
        looks = await self._find_looks(sums, since, until, prices)
        found = {
            look.job_id: idle
            for look in looks
            if (idle := take_look(known.get(look.job_id), look)) is not None
        }
        done = await self._act(settings, found)
        self._looked_at = until
        return done

    def _begin_look(self, known: Iterable[IdleGpus], until: datetime) -> datetime:
        """Return when this look begins: where the last one ended, also that of an earlier leader."""
        seen = [one.seen_at for one in known]
        since = self._looked_at or min(seen, default=until - SHORTEST_LOOK)
        return max(since, until - LONGEST_LOOK)

    async def _find_looks(
        self, sums: Sequence[LedgerSum], since: datetime, until: datetime, prices: Prices
    ) -> list[IdleLook]:
        """Return a look at each running job that holds GPUs."""
        store = self._controller.store
        ms: dict[str, dict[LedgerName, int]] = {}
        usd: dict[str, float] = {}
        for each in sums:
            job_id, host = each.key
            of = ms.setdefault(job_id, {})
            for name, count in each.ms.items():
                of[name] = of.get(name, 0) + count
            cost = prices.find_usd(host, "gpu", each.total_ms, since)
            if cost is not None:
                usd[job_id] = usd.get(job_id, 0.0) + cost
        jobs = await store.jobs.get_jobs([job_id for job_id in ms if job_id])
        held = [job for job in jobs.values() if job.state in _HOLDING and job.gpus]
        tasks = await store.jobs.list_tasks_of([job.id for job in held], first=MOST_RANKS)
        looks = []
        for job in held:
            sections = any(task.section for task in tasks.get(job.id, ()))
            whole = sum(ms[job.id].values())
            cost, gpus = usd.get(job.id), job.gpus * job.tasks
            rate = None if cost is None or not whole else cost * HOUR_MS * gpus / whole
            looks.append(
                IdleLook(
                    job_id=job.id,
                    epoch=job.epoch,
                    gpus=gpus,
                    since=since,
                    until=until,
                    ms=ms[job.id],
                    excused=sections or _has_own_rule(job),
                    usd_per_hour=rate,
                )
            )
        return looks

    async def _act(self, settings: Settings, found: Mapping[str, IdleGpus]) -> Summary:
        controller, store = self._controller, self._controller.store
        jobs = await store.jobs.get_jobs(found)
        kept: list[IdleGpus] = []
        events: list[NewEvent] = []
        drains: list[tuple[JobRecord, str]] = []
        for job_id, idle in found.items():
            job = jobs.get(job_id)
            if job is None:
                continue
            policy = find_idle_policy(settings, job)
            then = decide_idle(idle, policy)
            if then is Then.DRAIN:
                drains.append((job, say_idle(idle, policy, drains=True)))
                continue
            if then is Then.TELL:
                idle = msgspec.structs.replace(idle, told_at=idle.seen_at)
                events.append(_tell(job, idle, say_idle(idle, policy)))
            kept.append(idle)
        await store.money.write_idle_gpus(kept, events)
        for job, reason in drains:
            log.warning("%s", reason, extra={"job": job.id})
            await store.jobs.drain_job(job.id, Cause.PREEMPTED, reason, epoch=job.epoch)
        if events or drains:
            controller.poke("drain", "events")
        counts = {"told": len(events), "stopped": len(drains)}
        return {name: count for name, count in counts.items() if count}


def _has_own_rule(job: JobRecord) -> bool:
    """Return whether idleness of the job is judged elsewhere (HELD-2)."""
    return job.spec.attended or job.spec.terminal or bool(job.spec.executor)


def _tell(job: JobRecord, idle: IdleGpus, words: str) -> NewEvent:
    log.warning("%s", words, extra={"job": job.id})
    data = {
        "gpus": idle.gpus,
        "idle_seconds": round(idle.seconds),
        "usd": None if idle.usd is None else round(idle.usd, 2),
        "owner": job.owner,
    }
    return NewEvent(
        kind=IDLE_GPUS,
        job_id=job.id,
        attempt=job.attempts,
        epoch=job.epoch,
        queue=job.queue,
        project=job.project,
        message=words,
        data=data,
    )
