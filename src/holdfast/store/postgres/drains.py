"""Drains in PostgreSQL: the ready ones, and the one write that ends each."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.endings.drain import Completion
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.placement.plan import Capacity, JobPlacement
from holdfast.core.records import JobRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobState
from holdfast.moves import dispatch, drains
from holdfast.moves.moves import Moves
from holdfast.moves.quotas import sets_quota, sets_share
from holdfast.moves.reports import Draft
from holdfast.moves.rows import JobRow
from holdfast.moves.values import DrainNews, DrainSnapshot, HostSync, Restarted, TellDrains
from holdfast.store.port.clock import Now
from holdfast.store.port.drains import Fall, FallTaken
from holdfast.store.postgres.admission import Step, as_capacity, ask_capacity, ask_room, take_room
from holdfast.store.postgres.connection.ports import OnSession, reads_beside, transacts
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.hosts import quarantine_host
from holdfast.store.postgres.jobs import read_jobs
from holdfast.store.postgres.leases import answer_polls, ask_for_polls
from holdfast.store.postgres.moves import (
    ask_moves,
    list_writes,
    load_moves,
    take_moves,
    write_moves,
)
from holdfast.store.postgres.settings import ASK_SWITCHES, take_switches
from holdfast.store.postgres.sync.falls import OtherFallError, take_fall

MAX_LIKELY = 32


class PostgresDrains(OnSession):
    """`DrainStore` on PostgreSQL."""

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self.environment = environment
        self._likely: dict[str, None] = {}
        """Jobs of which was told last: they are read in the same round trip that finds them."""

    def watch_drains(self, tell: TellDrains) -> None:
        def hear(news: Sequence[DrainNews]) -> None:
            told = [*self._likely, *(item.job_id for item in news)]
            self._likely = dict.fromkeys(told[-MAX_LIKELY:])
            tell(news)

        self.session.tell_drains = hear

    @reads_beside
    async def list_drains(self, tx: Tx, limit: int) -> list[DrainSnapshot]:
        likely, self._likely = list(self._likely), {}
        looked = ("find_drained", {"limit": limit})
        ready, *found = await tx.many(looked, *(_ask_drains(likely) if likely else ()))
        told = {row["id"]: row for row in ready}
        ids = list(told)
        if not ids:
            return []
        if not told.keys() <= set(likely):
            found = await tx.many(*_ask_drains(ids))
        jobs = {job.id: job for job in msgspec.convert(found[0], list[JobRecord])}
        tasks = defaultdict[str, list[TaskRecord]](list)
        for task in msgspec.convert(found[1], list[TaskRecord]):
            tasks[task.job_id].append(task)
        return [
            DrainSnapshot(job=jobs[i], tasks=tuple(tasks[i]), seconds=told[i]["seconds"])
            for i in ids
            if i in jobs
        ]

    @reads_beside
    async def list_slow_drains(self, tx: Tx, before: datetime) -> list[JobRecord]:
        ids = [row["id"] for row in await tx.rows("find_slow_drains", before=before)]
        jobs = await read_jobs(tx, ids)
        return [jobs[i] for i in ids if i in jobs]

    @transacts
    async def force_drain(self, tx: Tx, job_id: str, epoch: int, *, now: Now = None) -> int:
        m = await load_moves(tx, [job_id], await tx.now(now))
        job = m.jobs.get(job_id)
        if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
            return 0
        forced = drains.force_drain(m, job)
        await write_moves(tx, m)
        return forced

    @transacts
    async def complete_drain(
        self,
        tx: Tx,
        job_id: str,
        epoch: int,
        completion: Completion,
        *,
        at_once: bool = False,
        now: Now = None,
    ) -> bool:
        first = [("read_now", {"now": now}), *(ASK_SWITCHES if at_once else ())]
        suspect = None
        if completion.decision.quarantine_host and completion.trigger_rank is not None:
            found = await tx.many(*first)
            suspect = await _lock_suspect(tx, job_id, completion.trigger_rank)
            found += await tx.many(*ask_moves([job_id]))
        else:
            found = await tx.many(*first, *ask_moves([job_id]))
        (at,) = found[0][0].values()
        m = take_moves(at, *found[-3:])
        job = _find_ready(m, job_id, epoch)
        if job is None:
            return False
        quarantined = drains.complete_drain(m, job, completion)
        if at_once:
            dispatch.dispatch_at_once(m, job, take_switches(self.environment, *found[1:3]))
        if quarantined is None or quarantined != suspect:
            await write_moves(tx, m, last=True)
        else:
            await write_moves(tx, m)
            await quarantine_host(tx, suspect, completion.decision.reason, at)
        return True

    async def read_open_room(
        self, job_id: str, silence_seconds: float | None, *, now: Now = None
    ) -> tuple[Capacity, ...] | None:
        limits = "max_running" in self.environment or sets_share(self.environment)
        if limits or sets_quota(self.environment):
            return None
        rivals, found = await self.session.single(
            lambda tx: tx.many(
                ("look_for_rivals", {"id": job_id}),
                ask_capacity(None, silence=silence_seconds, but=job_id, now=now),
            )
        )
        if rivals[0]["rivals"]:
            return None
        return tuple(as_capacity(row) for row in found)

    async def take_fall(
        self, sync: HostSync, fall: Fall, *, rules: Sequence[OperatorRule] = (), now: Now = None
    ) -> FallTaken | None:
        try:
            return await self.session.transact(
                lambda tx: take_fall(tx, self.environment, sync, fall, rules, now)
            )
        except OtherFallError:
            return None

    @transacts
    async def restart_drained(
        self,
        tx: Tx,
        job_id: str,
        epoch: int,
        completion: Completion,
        placement: JobPlacement,
        ttl: float,
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> Restarted | None:
        # A change of a queue locks it, and then the row of the switches.
        queues, *others = ask_room([placement], now)
        plans: Step = ("keep_plans", None)  # not before `read_capacity`, which is for any hosts
        locks = (*others, plans, *ask_moves([job_id]))
        paused, *found = await tx.many(queues, *ASK_SWITCHES, *locks)
        room = [paused, *found[2:-4]]
        (at,) = room[-1][0].values()
        m = take_moves(at, *found[-3:])
        job = _find_ready(m, job_id, epoch)
        if job is None:
            return None
        drains.complete_drain(m, job, completion)
        dispatch.dispatch_at_once(m, job, take_switches(self.environment, *found[:2]))
        steps: list[Step] = [*list_writes(m)]
        drafts, taken = list[Draft](), None
        # A quota has locks of its own, which come before those of jobs.
        limited = room[1][0]["limited"] or sets_quota(self.environment)
        if job.state is JobState.QUEUED and not limited:
            ttls = {job_id: ttl}
            taken = await take_room(tx, self.environment, [placement], ttls, now, room)
        if taken is not None:
            drafts, asked = ask_for_polls(polls, [placement], at)
            steps = [*steps, *taken.steps, *asked]
        rows = await tx.last(*steps)
        tx.drain_news += m.drain_news
        if taken is None:
            return Restarted(started=False)
        _, left, *orders = rows[len(steps) - len(taken.steps) - len(asked) :]
        started = bool(taken.list_applied(left))
        return Restarted(started=started, answers=tuple(answer_polls(drafts, orders)))


def _find_ready(m: Moves, job_id: str, epoch: int) -> JobRow | None:
    """Return the job if it still drains under its epoch, and every end is confirmed (DRAIN-1)."""
    job = m.jobs.get(job_id)
    if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
        return None
    return None if any(task.state.holds_lease for task in m.ranks(job)) else job


def _ask_drains(ids: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    return [("read_jobs", {"ids": ids}), ("read_tasks", {"ids": ids})]


async def _lock_suspect(tx: Tx, job_id: str, rank: int) -> str | None:
    """Lock the host of a rank, if it has one, before its job: that is the order of locks."""
    suspect = None
    for row in await tx.rows("read_tasks", ids=[job_id]):
        if row["rank"] == rank and row["host_id"] is not None:
            suspect = row["host_id"]
            await tx.value("lock_host", id=suspect)
    return suspect
