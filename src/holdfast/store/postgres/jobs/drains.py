"""Drains in PostgreSQL: find the ready ones, and complete each by one write."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.endings.drain import Completion
from holdfast.core.records import JobRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobState
from holdfast.moves.jobs import dispatch, drains
from holdfast.moves.jobs.moves import Moves
from holdfast.moves.rows import JobRow
from holdfast.moves.values import DrainListener, DrainNews, DrainSnapshot
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.hosts import quarantine_host
from holdfast.store.postgres.jobs.lists import read_jobs
from holdfast.store.postgres.moves import ask_moves, load_moves, take_moves, write_moves
from holdfast.store.postgres.settings import ASK_SWITCHES, take_switches

MAX_LIKELY = 32


class PostgresDrains(OnSession):
    """Draining jobs and their completion."""

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self.environment = environment
        self._likely: dict[str, None] = {}
        """Ids of the jobs in the last news of drains, which are read in the same round trip that
        finds the ready drains."""

    def watch_drains(self, tell: DrainListener) -> None:
        """Call `tell` from now on after each commit of this store in which drains began or tasks
        that were ordered to stop have ended. `tell` must not raise, and is not called where it is
        not known whether a commit succeeded."""

        def hear(news: Sequence[DrainNews]) -> None:
            told = [*self._likely, *(item.job_id for item in news)]
            self._likely = dict.fromkeys(told[-MAX_LIKELY:])
            tell(news)

        self.session.tell_drains = hear

    @reads
    async def list_drains(
        self, tx: Tx, limit: int, *, late_seconds: float = 0.0, now: Now = None
    ) -> list[DrainSnapshot]:
        """Return draining jobs that are ready to be completed, because none of their tasks holds a
        lease. late_seconds: for how long a task whose lease lapsed holds its job up, unless its
        host is flagged dead, because the host may be heard again with a good end (LATE-1)."""
        likely, self._likely = list(self._likely), {}
        looked = ("find_drained", {"limit": limit, "late": late_seconds, "now": now})
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

    @reads
    async def list_slow_drains(self, tx: Tx, before: datetime) -> list[JobRecord]:
        """Return draining jobs, not forced yet, with tasks that were ordered to stop before the
        instant `before` and whose ends are not confirmed."""
        ids = [row["id"] for row in await tx.rows("find_slow_drains", before=before)]
        jobs = await read_jobs(tx, ids)
        return [jobs[i] for i in ids if i in jobs]

    @transacts
    async def force_drain(self, tx: Tx, job_id: str, epoch: int, *, now: Now = None) -> int:
        """Order the remaining tasks of a drain to end without grace, once. Each task gets an event
        task.force_drained. Return the number of tasks."""
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
        """Write a completion where the job still drains under `epoch`, in one transaction: attempt
        ended, task rows deleted, job moved, charges, avoid-list and quarantine applied, epoch + 1,
        events. at_once: a retry that is due already is dispatched as well, unless a kill switch
        holds it (RETRY-6). False when another call did it."""
        first = [("read_now", {"now": now}), *(ASK_SWITCHES if at_once else ())]
        suspect = None
        if completion.decision.quarantine_host and completion.trigger_rank is not None:
            found = await tx.many(*first)
            suspect = await _lock_suspect(tx, job_id, completion.trigger_rank)
            found += await tx.many(*ask_moves([job_id]))
        else:
            found = await tx.many(*first, *ask_moves([job_id]))
        (at,) = found[0][0].values()
        m = take_moves(at, *found[-2:])
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


def _find_ready(m: Moves, job_id: str, epoch: int) -> JobRow | None:
    """Return the job if it still drains under its epoch, and every end is confirmed (DRAIN-1)."""
    job = m.jobs.get(job_id)
    if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
        return None
    return None if any(task.state.holds_lease for task in m.ranks(job)) else job


def _ask_drains(ids: Sequence[str]) -> list[tuple[str, dict[str, Any]]]:
    return [("read_jobs", {"ids": ids}), ("read_tasks", {"ids": ids})]


async def _lock_suspect(tx: Tx, job_id: str, rank: int) -> str | None:
    """Lock the host of a rank, if it has one, before its job, because that is the order of
    locks."""
    suspect = None
    for row in await tx.rows("read_tasks", ids=[job_id]):
        if row["rank"] == rank and row["host_id"] is not None:
            suspect = row["host_id"]
            await tx.value("lock_host", id=suspect)
    return suspect
