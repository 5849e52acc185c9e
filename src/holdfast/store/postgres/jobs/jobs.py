"""Jobs in PostgreSQL: their submission, reads, cancels, drains and retries."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.records import AttemptRecord, JobRecord, MemberRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobEvent
from holdfast.core.transitions import JOB, sources
from holdfast.errors import HoldfastError
from holdfast.moves.jobs import drains, requests
from holdfast.moves.jobs.quotas import find_refused, sets_quota
from holdfast.moves.jobs.requests import Changed
from holdfast.moves.rows import JobRow
from holdfast.moves.values import JobFilter, NewJob, Submitted
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Session, Tx, to_json
from holdfast.store.postgres.jobs.lists import find_listed, read_jobs
from holdfast.store.postgres.jobs.submissions import ask_insert, insert_jobs, make_row
from holdfast.store.postgres.moves import load_moves, write_moves
from holdfast.store.postgres.settings import check_quotas, hold_quotas

T = TypeVar("T")
PRUNE_ARRAYS = 100
PRUNE_BATCH = 20  # jobs a transaction: each may have hundreds of megabytes of log
_PRUNED = (
    "prune_chunks",
    "prune_streams",
    "prune_outputs",
    *("prune_suspects", "prune_usage"),
    "prune_forensics",
    "note_pruned_events",
    "prune_batches",  # before the attempts, which name them
    "prune_attempts",
    "prune_replacements",
    "prune_secrets",
    "prune_sessions",
    "prune_dependencies",
    "prune_events",
    "prune_jobs",
)


class PostgresJobs(OnSession):
    """The submission, reads, cancels and retries of jobs.

    A read of many ids is one round trip; unknown ids are missing from its answer and raise nothing.
    """

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self.environment = environment

    async def submit_jobs(self, jobs: Sequence[NewJob], *, now: Now = None) -> list[Submitted]:
        """Write jobs and their events, all or none. A job with a start time in the future becomes
        `waiting`.

        QUOTA-1: a hard quota counts all unfinished jobs, is checked under the project's lock, and
        refuses the whole call. A soft quota, too, refuses a job that alone needs more GPUs than the
        quota, because such a job could never start.

        Raises:
            Conflict: an idempotency key names a job whose spec differs (code
            "idempotency_mismatch").
            QuotaExceeded: the project's quota forbids it.
        """
        if not jobs:
            return []
        params = ask_insert(jobs, now)
        if len(jobs) == 1 and not jobs[0].spec.after and not sets_quota(self.environment):
            # The usual case, one new job without a quota, is a transaction of one statement, which
            # may be sent again. In any other case it writes nothing and the code below takes over.
            digest = requests.hash_spec(jobs[0].spec)
            given = {"rows": to_json([make_row(jobs[0], digest)]), "limited_too": False}
            written = await self.session.rows("insert_jobs", **(params | given))
            if written:
                return [Submitted(job=msgspec.convert(written[0], JobRecord), created=True)]
        return await self.session.transact(lambda tx: insert_jobs(tx, jobs, self.environment, now))

    async def get_job(self, job_id: str) -> JobRecord:
        """Return a job. Raises NotFound."""
        found = await self.session.single(lambda tx: read_jobs(tx, [job_id]))
        if job_id not in found:
            raise requests.no_job(job_id)
        return found[job_id]

    async def get_jobs(self, job_ids: Collection[str]) -> dict[str, JobRecord]:
        """Return jobs by id."""
        return await self.session.single(lambda tx: read_jobs(tx, list(job_ids)))

    @reads
    async def list_jobs(self, tx: Tx, filter: JobFilter) -> list[JobRecord]:
        """Return the jobs that pass the filter, newest first."""
        ids = await find_listed(tx, filter)
        found = await read_jobs(tx, ids)
        return [found[job_id] for job_id in ids if job_id in found]

    async def count_children(self, job_id: str) -> int:
        """Return how many unfinished jobs the job has submitted with its own token."""
        (row,) = await self.session.rows("count_children", job_id=job_id)
        return int(row["count"])

    async def list_left_children(self) -> list[tuple[str, str]]:
        """Return (job, parent) for unfinished jobs, not detached, whose parent was or is being
        cancelled; at most 1000."""
        return [(row["id"], row["parent"]) for row in await self.session.rows("list_left_children")]

    async def count_jobs(self) -> dict[tuple[str, str], int]:
        """Return (queue, state) → count, exactly and for unfinished states only."""
        return {
            (row["queue"], row["state"]): row["count"]
            for row in await self.session.rows("count_jobs")
        }

    async def count_waiting(self) -> dict[tuple[str, str], int]:
        """Return (project, wait_cause) → count of waiting jobs."""
        rows = await self.session.rows("count_waiting")
        return {(row["project"], row["wait_cause"]): row["count"] for row in rows}

    async def queue_places(self, job_ids: Collection[str]) -> dict[str, int]:
        """Return, for each queued job, the number of jobs before it in its queue (by priority, then
        place), counted up to 10 000."""
        rows = await self.session.rows("read_queue_places", ids=_once(job_ids))
        return {row["id"]: row["place"] for row in rows}

    async def list_tasks(self, job_id: str) -> list[TaskRecord]:
        """Return the tasks of a job's present attempt, by rank."""
        return await self.session.list_of(TaskRecord, "read_tasks", ids=[job_id])

    async def list_tasks_of(
        self, job_ids: Collection[str], *, first: int, after: int = -1
    ) -> dict[str, list[TaskRecord]]:
        """Return the current tasks of each job by rank: at most `first` tasks, of ranks above
        `after`."""
        params = {"ids": _once(job_ids), "first": first, "after": after}
        return _group(await self.session.list_of(TaskRecord, "read_tasks_of", **params))

    @reads
    async def list_attempts(self, tx: Tx, job_id: str) -> list[AttemptRecord]:
        """Return a job's attempts, oldest first, the running one included. Raises NotFound."""
        attempts = await tx.list_of(AttemptRecord, "read_attempts", id=job_id)
        if not attempts and await tx.one("job_exists", id=job_id) is None:
            raise requests.no_job(job_id)
        return attempts

    async def list_attempts_of(
        self,
        job_ids: Collection[str],
        *,
        last: int,
        before: int | None = None,
        cause: Cause | None = None,
    ) -> dict[str, list[AttemptRecord]]:
        """Return each job's last `last` attempts, oldest first, without their members because a
        gang has many.

        before: only attempts with a lower number. cause: only attempts that ended for this cause.
        """
        params = {"ids": _once(job_ids), "last": last, "before": before, "cause": cause}
        return _group(await self.session.list_of(AttemptRecord, "read_attempts_of", **params))

    async def get_attempts(
        self, keys: Collection[tuple[str, int]], *, members: bool = False
    ) -> dict[tuple[str, int], AttemptRecord]:
        """Return attempts by (job id, number), without their members unless `members` is set."""
        params = {**_split(keys), "members": members}
        found = await self.session.list_of(AttemptRecord, "read_attempts_by_key", **params)
        return {(attempt.job_id, attempt.number): attempt for attempt in found}

    async def list_members_of(
        self, keys: Collection[tuple[str, int]], *, first: int, after: int = -1
    ) -> dict[tuple[str, int], list[MemberRecord]]:
        """Return the ends of each attempt's ranks by rank: at most `first` ends, of ranks above
        `after`."""
        found: dict[tuple[str, int], list[MemberRecord]] = {}
        for row in await self.session.rows(
            "read_members_of", **_split(keys), first=first, after=after
        ):
            found.setdefault((row["job_id"], row["number"]), []).append(
                msgspec.convert(row["member"], MemberRecord)
            )
        return found

    @transacts
    async def cancel_job(
        self, tx: Tx, job_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> JobRecord:
        """Cancel a job. A job that waits, is queued, or has a reservation never offered to a host
        is cancelled at once; for any other a drain begins (cause user_cancelled), or the present
        drain becomes a cancel. A job that has ended is returned as it is. Raises NotFound."""
        m = await load_moves(tx, [job_id], await tx.now(now))
        if job_id not in m.jobs:
            raise requests.no_job(job_id)
        requests.cancel(m, m.jobs[job_id], reason, hard=hard)
        await write_moves(tx, m)
        return (await read_jobs(tx, [job_id]))[job_id]

    @transacts
    async def cancel_jobs(
        self, tx: Tx, job_ids: Collection[str], reason: str, *, hard: bool = False, now: Now = None
    ) -> Changed:
        """Cancel each job as `cancel_job` does, in the order of their ids: all in one transaction,
        except that jobs which hosts have just taken are cancelled in a second one. An unknown id is
        refused, and the other jobs are cancelled all the same."""
        ids = _once(job_ids)
        m = await load_moves(tx, ids, await tx.now(now))
        for job in m.jobs.values():
            requests.cancel(m, job, reason, hard=hard)
        await write_moves(tx, m)
        found = await read_jobs(tx, list(m.jobs))
        missing: dict[str, HoldfastError] = {
            job_id: requests.no_job(job_id) for job_id in ids if job_id not in found
        }
        return Changed(jobs=found, refused=missing)

    @transacts
    async def revive_job(
        self,
        tx: Tx,
        job_id: str,
        reason: str,
        *,
        counted: bool = False,
        from_scratch: bool = False,
        now: Now = None,
    ) -> JobRecord:
        """Queue a failed, cancelled or parked job again, for a person's `retry`. A job that backs
        off is queued at once, with its budgets as they are.

        counted: use one more retry of the present budgets, instead of starting with fresh ones.
        from_scratch: forget its checkpoints; otherwise it starts from the newest.

        Raises:
            NotFound: no such job. Conflict: from any other state.
        """
        at = await tx.now(now)
        found = (await read_jobs(tx, [job_id])).get(job_id)
        if found is None:
            raise requests.no_job(job_id)
        requests.check_revivable(job_id, found.state, found.wait_cause)
        if found.array_id is not None:
            await tx.run("line_array", id=found.array_id)
        # The project's lock comes before the job's; the state is checked again under both.
        if found.ended_at is not None:  # a parked one is unfinished as it is
            await check_quotas(
                tx, [(found.project, found.gpus * found.tasks)], self.environment, written=[]
            )
        m = await load_moves(tx, [job_id], at)
        job = m.jobs.get(job_id)
        if job is None:
            raise requests.no_job(job_id)
        requests.check_revivable(job_id, job.state, job.wait_cause)
        if not await tx.rows("hold_queues", names=[job.queue]):
            raise requests.refuse_queue(job.queue)
        made = int(await tx.value("last_retry_count", id=job_id) or 0) if counted else None
        requests.revive(m, job, reason, made=made)
        await write_moves(tx, m)
        if from_scratch:
            await tx.rows("delete_checkpoints", job_id=job_id, rank=None, number=None)
        return (await read_jobs(tx, [job_id]))[job_id]

    @transacts
    async def revive_jobs(
        self,
        tx: Tx,
        reasons: Mapping[str, str],
        *,
        counted: bool = False,
        from_scratch: bool = False,
        now: Now = None,
    ) -> Changed:
        """Queue each of these jobs again, for its reason, as `revive_job` does, in the order of
        their ids and all in one transaction. Where one job is refused, the others are retried all
        the same; where a quota has no room for all of them, the first ones are queued."""
        at, refused = await tx.now(now), dict[str, HoldfastError]()
        known = await read_jobs(tx, sorted(reasons))
        _refuse_unrevivable(reasons, known, refused)
        may = [known[job_id] for job_id in sorted(known) if job_id not in refused]
        may = await self._hold_for_revival(tx, may, refused)
        ids = [job.id for job in may]
        m = await load_moves(tx, ids, at)
        _refuse_unrevivable(ids, m.jobs, refused)  # it is checked again under the locks
        revived = [job for job in m.jobs.values() if job.id not in refused]
        made: Mapping[str, int | None] = {}
        if counted:
            rows = await tx.rows("last_retry_counts", ids=ids)
            made = dict.fromkeys(ids, 0) | {row["job_id"]: row["retry_count"] for row in rows}
        for job in revived:
            requests.revive(m, job, reasons[job.id], made=made.get(job.id))
        await write_moves(tx, m)
        if from_scratch:
            for job in revived:
                await tx.rows("delete_checkpoints", job_id=job.id, rank=None, number=None)
        return Changed(jobs=await read_jobs(tx, [job.id for job in revived]), refused=refused)

    async def _hold_for_revival(
        self, tx: Tx, jobs: Sequence[JobRecord], refused: dict[str, HoldfastError]
    ) -> list[JobRecord]:
        """Lock the arrays, projects and queues of jobs that are to be retried, because these locks
        come before those of jobs. Return the jobs whose retry they allow."""
        for array_id in sorted({job.array_id for job in jobs if job.array_id is not None}):
            await tx.run("line_array", id=array_id)
        held = await tx.rows("hold_queues", names=sorted({job.queue for job in jobs}))
        there = {row["name"] for row in held}
        refused |= {j.id: requests.refuse_queue(j.queue) for j in jobs if j.queue not in there}
        added = [  # a parked one is unfinished as it is
            (job.id, job.project, job.gpus * job.tasks)
            for job in jobs
            if job.queue in there and job.ended_at is not None
        ]
        projects = {project for _, project, _ in added}
        refused |= find_refused(await hold_quotas(tx, projects, self.environment), added)
        return [job for job in jobs if job.id not in refused]

    @transacts
    async def drain_job(
        self,
        tx: Tx,
        job_id: str,
        cause: Cause,
        reason: str,
        *,
        hard: bool = False,
        epoch: int | None = None,
        notice_seconds: float | None = None,
        now: Now = None,
    ) -> bool:
        """Begin a drain of a reserved or running job; with `epoch`, only of the attempt under that
        epoch. notice_seconds: the time that its tasks have to save; None: their grace. Return
        whether this call began the drain: an epoch has one drain at most. Raises NotFound."""
        m = await load_moves(tx, [job_id], await tx.now(now))
        job = m.jobs.get(job_id)
        if job is None:
            raise requests.no_job(job_id)
        if job.state not in sources(JOB, JobEvent.DRAIN) or epoch not in (None, job.epoch):
            return False
        drains.begin_drain(m, job, cause, reason, hard=hard, notice_seconds=notice_seconds)
        await write_moves(tx, m)
        return True

    async def prune(self, history_days: float, *, limit: int = 1000, now: Now = None) -> int:
        """Delete jobs that ended longer ago than that with all their rows, in small batches, and
        events of that age that belong to no job. Return how many jobs.

        HISTORY-1  A job is deleted only once everything that names it has ended so long ago too:
                   its array, the jobs that waited for it, the workflow run whose node it is, and
                   the call sets that printed into its output. The newest job of a schedule stays.
        """

        async def find(tx: Tx) -> tuple[datetime, list[str]]:
            before = await tx.now(now) - timedelta(days=history_days)
            over = await tx.rows("find_over_arrays", before=before, limit=PRUNE_ARRAYS)
            given = {"before": before, "arrays": [row["id"] for row in over], "limit": limit}
            return before, [row["id"] for row in await tx.rows("find_old_jobs", **given)]

        async def work(tx: Tx, old: Sequence[str]) -> int:
            ids = [row["id"] for row in await tx.rows("lock_old_jobs", ids=old, before=before)]
            if ids:
                for name in _PRUNED:
                    await tx.run(name, ids=ids)
            await tx.run("prune_arrays", before=before)
            await tx.run("prune_other_events", before=before, limit=PRUNE_BATCH)
            return len(ids)

        before, found = await self.session.single(find)
        total = 0
        # Once at least, for what is no job's.
        for start in range(0, max(len(found), 1), PRUNE_BATCH):
            total += await self.session.transact(
                partial(work, old=found[start : start + PRUNE_BATCH])
            )
        return total


def _refuse_unrevivable(
    ids: Iterable[str],
    known: Mapping[str, JobRecord] | Mapping[str, JobRow],
    refused: dict[str, HoldfastError],
) -> None:
    """Add to `refused` the jobs that are missing, and those whose state forbids a retry."""
    for job_id in ids:
        job = known.get(job_id)
        try:
            if job is None:
                raise requests.no_job(job_id)
            requests.check_revivable(job_id, job.state, job.wait_cause)
        except HoldfastError as error:
            refused[job_id] = error


def _once(keys: Collection[T]) -> list[T]:
    """Return each key once, so that a repeated key is not read twice."""
    return list(dict.fromkeys(keys))


def _split(keys: Collection[tuple[str, int]]) -> dict[str, Any]:
    asked = _once(keys)
    return {"ids": [job_id for job_id, _ in asked], "numbers": [number for _, number in asked]}


def _group(records: list[Any]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for record in records:
        grouped.setdefault(record.job_id, []).append(record)
    return grouped
