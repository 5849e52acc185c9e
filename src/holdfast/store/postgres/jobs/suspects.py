"""Suspects in PostgreSQL: the evidence about ranks, and what is done about it in the same
transaction."""

from collections.abc import Collection

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.states import JobState
from holdfast.core.stragglers.records import Act, SuspectKind, SuspectRecord
from holdfast.moves.jobs import drains, members
from holdfast.moves.jobs.moves import Moves
from holdfast.moves.rows import JobRow, TaskRow
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.moves import load_moves, write_moves

EVENT_OF = {
    "slow": "task.straggler",
    "slowed": "job.slowed",
    "corrupt": "job.corrupt",
    "still": "task.still",
}
ENDED_OF: dict[SuspectKind, str] = {"slow": "task.steady", "still": "task.moving"}
MAX_RESTARTS = 3
"""Attempts of one job that are ended for a slow rank; further ones run on, however slow."""


class NewSuspect(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence to be written. rank: None for the gang as a whole. epoch: of the rank's task, or of
    any task of the gang. act: what is to be done, where the job still allows it. cause: of the
    attempt's end, where `act` ends it."""

    job_id: str
    epoch: int
    rank: int | None
    kind: SuspectKind
    step: int
    message: str
    evidence: dict[str, str | int | float | bool | None] = {}
    act: Act = ""
    cause: Cause = Cause.STRAGGLER


class PostgresSuspects(OnSession):
    """The suspects of jobs."""

    @transacts
    async def note_suspect(self, tx: Tx, new: NewSuspect, *, now: Now = None) -> Act | None:
        """Write the evidence and its event, and do what it asks for. Return what was done ("" where
        nothing was asked or could be), or None where the attempt is over already."""
        at = await tx.now(now)
        restarts = await tx.value("count_restarts", job_id=new.job_id)
        m = await load_moves(tx, [new.job_id], at)
        job, task = _find(m, new.job_id, new.rank, new.epoch)
        if job is None or (task is None and new.rank is not None):
            return None
        act = new.act
        if act == "restart" and new.kind == "slow" and restarts >= MAX_RESTARTS:
            act = ""
        if act == "replace" and (task is None or not members.may_stop(job, task)):
            act = ""
        await tx.run(
            "put_suspect",
            job_id=job.id,
            attempt=job.attempts,
            rank=-1 if new.rank is None else new.rank,
            kind=new.kind,
            host_id=None if task is None else task.host_id,
            now=at,
            step=new.step,
            message=new.message,
            evidence=to_json(new.evidence),
            act=act,
        )
        m.log(EVENT_OF[new.kind], job, new.message, task=task, act=act or None, **new.evidence)
        if act == "restart":
            drains.begin_drain(m, job, new.cause, new.message, trigger=task)
        elif act == "replace" and task is not None:
            members.stop_member(m, job, task, new.cause, new.message)
        await write_moves(tx, m)
        return act

    @transacts
    async def end_suspect(
        self,
        tx: Tx,
        job_id: str,
        rank: int,
        epoch: int,
        message: str,
        *,
        kind: SuspectKind = "slow",
        now: Now = None,
    ) -> bool:
        """Write that a slow rank keeps up, or that its work moves, again, with the event."""
        at = await tx.now(now)
        m = await load_moves(tx, [job_id], at)
        job, task = _find(m, job_id, rank, epoch)
        if job is None or task is None:
            return False
        given = {"job_id": job_id, "attempt": job.attempts, "rank": rank, "kind": kind}
        if not await tx.run("end_suspect", now=at, **given):
            return False
        m.log(ENDED_OF[kind], job, message, task=task)
        await write_moves(tx, m)
        return True

    @reads
    async def list_suspects(self, tx: Tx, job_ids: Collection[str]) -> list[SuspectRecord]:
        """Return the suspects of all attempts of these jobs, oldest first."""
        return await tx.list_of(SuspectRecord, "list_suspects", ids=list(job_ids))


def _find(
    m: Moves, job_id: str, rank: int | None, epoch: int
) -> tuple[JobRow | None, TaskRow | None]:
    """Return the job if the attempt of the evidence still runs, and the rank's task."""
    job = m.jobs.get(job_id)
    if job is None or job.state is not JobState.RUNNING:
        return None, None
    if rank is None:
        return (job if any(t.epoch == epoch for t in m.ranks(job)) else None), None
    task = m.tasks[job_id].get(rank)
    return job, task if task is not None and task.epoch == epoch else None
