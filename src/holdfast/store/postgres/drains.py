"""Drains in PostgreSQL: the ready ones, and the one write that ends each."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.endings.drain import Completion
from holdfast.core.records import JobRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostEvent, HostState, JobState
from holdfast.core.transitions import HOST, sources, step
from holdfast.moves import dispatch, drains
from holdfast.moves.values import DrainNews, DrainSnapshot, TellDrains
from holdfast.store.port.clock import Now
from holdfast.store.postgres.connection.session import OnSession, Session, Tx, reads, transacts
from holdfast.store.postgres.hosts import set_host_state
from holdfast.store.postgres.jobs import read_jobs
from holdfast.store.postgres.moves import ask_moves, load_moves, take_moves, write_moves
from holdfast.store.postgres.settings import ASK_SWITCHES, take_switches

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

    @reads
    async def list_drains(self, tx: Tx, limit: int) -> list[DrainSnapshot]:
        likely, self._likely = list(self._likely), {}
        looked = ("find_drained", {"limit": limit})
        ready, *found = await tx.many(looked, *(_ask_drains(likely) if likely else ()))
        seconds = {row["id"]: row["seconds"] for row in ready}
        ids = list(seconds)
        if not ids:
            return []
        if not seconds.keys() <= set(likely):
            found = await tx.many(*_ask_drains(ids))
        jobs = {job.id: job for job in msgspec.convert(found[0], list[JobRecord])}
        tasks = defaultdict[str, list[TaskRecord]](list)
        for task in msgspec.convert(found[1], list[TaskRecord]):
            tasks[task.job_id].append(task)
        return [
            DrainSnapshot(job=jobs[i], tasks=tuple(tasks[i]), seconds=seconds[i])
            for i in ids
            if i in jobs
        ]

    @reads
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
        m = take_moves(at, *found[-2:])
        job = m.jobs.get(job_id)
        if job is None or job.state is not JobState.DRAINING or job.epoch != epoch:
            return False
        if any(task.state.holds_lease for task in m.ranks(job)):
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


async def quarantine_host(tx: Tx, host_id: str, reason: str, at: datetime) -> None:
    """Take a host out of service on a task's evidence, where its state allows it. The caller holds
    the host's lock."""
    row = await tx.one("read_host_state", id=host_id)
    if row is None or HostState(row["state"]) not in sources(HOST, HostEvent.QUARANTINE):
        return
    before = HostState(row["state"])
    after = step(HOST, before, HostEvent.QUARANTINE)
    await set_host_state(tx, host_id, row["name"], before, after, "quarantine", reason, at)
