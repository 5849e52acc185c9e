"""Jobs, their tasks and their attempts."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from holdfast.core.causes import Cause
from holdfast.core.records import AttemptRecord, JobRecord, MemberRecord, TaskRecord
from holdfast.moves.jobs.requests import Changed
from holdfast.moves.values import JobFilter, NewJob, Submitted
from holdfast.store.port.clock import Now


class JobStore(Protocol):
    """The submission, reads, cancels and retries of jobs.

    A read of many ids is one round trip; unknown ids are missing from its answer and raise nothing.
    """

    async def submit_jobs(self, jobs: Sequence[NewJob], *, now: Now = None) -> list[Submitted]:
        """Write jobs and their events, all or none. A start time in the future makes a job
        `waiting`.

        QUOTA-1: a hard quota counts all unfinished jobs, is checked under the project's lock, and
        refuses the whole call. A soft quota, too, refuses a job that alone needs more GPUs than the
        quota, because it could never start.

        Raises:
            Conflict: an idempotency key names a job whose spec differs (code
            "idempotency_mismatch").
            QuotaExceeded: the project's quota forbids it.
        """

    async def get_job(self, job_id: str) -> JobRecord:
        """Return a job. Raises NotFound."""

    async def get_jobs(self, job_ids: Collection[str]) -> dict[str, JobRecord]:
        """Return jobs by id."""

    async def list_jobs(self, filter: JobFilter) -> list[JobRecord]:
        """Return the jobs that pass the filter, newest first."""

    async def count_children(self, job_id: str) -> int:
        """Return how many unfinished jobs the job has submitted with its own token."""

    async def list_left_children(self) -> list[tuple[str, str]]:
        """Return (job, parent) for unfinished jobs, not detached, whose parent was or is being
        cancelled; at most 1000."""

    async def count_jobs(self) -> dict[tuple[str, str], int]:
        """Return (queue, state) → count, exactly and for unfinished states only."""

    async def count_waiting(self) -> dict[tuple[str, str], int]:
        """Return (project, wait_cause) → count of waiting jobs."""

    async def queue_places(self, job_ids: Collection[str]) -> dict[str, int]:
        """Return for each queued job the number of jobs before it in its queue (by priority, then
        place), counted up to 10 000."""

    async def list_tasks(self, job_id: str) -> list[TaskRecord]:
        """Return the current tasks by rank."""

    async def list_tasks_of(
        self, job_ids: Collection[str], *, first: int, after: int = -1
    ) -> dict[str, list[TaskRecord]]:
        """Return each job's current tasks by rank, at most `first` of those after rank `after`."""

    async def list_attempts(self, job_id: str) -> list[AttemptRecord]:
        """Return the attempts, oldest first, the running one included. Raises NotFound."""

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

    async def get_attempts(
        self, keys: Collection[tuple[str, int]], *, members: bool = False
    ) -> dict[tuple[str, int], AttemptRecord]:
        """Return attempts by (job id, number), without their members unless `members` is set."""

    async def list_members_of(
        self, keys: Collection[tuple[str, int]], *, first: int, after: int = -1
    ) -> dict[tuple[str, int], list[MemberRecord]]:
        """Return the ends of each attempt's ranks, by rank, at most `first` of those after rank
        `after`."""

    async def cancel_job(
        self, job_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> JobRecord:
        """Cancel a job that waits, is queued, or has a reservation never offered; otherwise begin a
        drain (cause user_cancelled) or turn the present one into a cancel. A job that has ended is
        returned as it is. Raises NotFound."""

    async def cancel_jobs(
        self, job_ids: Collection[str], reason: str, *, hard: bool = False, now: Now = None
    ) -> Changed:
        """Cancel each job as `cancel_job` does, in the order of their ids, all in one transaction,
        and jobs that hosts have just taken in another one. An unknown id is refused and stops no
        other job's cancel."""

    async def revive_job(
        self,
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

    async def revive_jobs(
        self,
        reasons: Mapping[str, str],
        *,
        counted: bool = False,
        from_scratch: bool = False,
        now: Now = None,
    ) -> Changed:
        """Queue each of these jobs again, for its reason, as `revive_job` does, in the order of their
        ids and all in one transaction. A refused job stops no other job's retry: where a quota has
        no room for all of them, the first ones are queued."""

    async def drain_job(
        self,
        job_id: str,
        cause: Cause,
        reason: str,
        *,
        hard: bool = False,
        epoch: int | None = None,
        now: Now = None,
    ) -> bool:
        """Begin a drain of a reserved or running job; with `epoch`, only of the attempt under it.
        Return whether this call began it (one drain per epoch). Raises NotFound."""

    async def prune(self, history_days: float, *, limit: int = 1000, now: Now = None) -> int:
        """Delete jobs that ended longer ago than that with all their rows, in small batches, and
        events of that age that belong to no job. Return how many jobs.

        HISTORY-1  A job is deleted only once everything that names it has ended so long ago too:
                   its
        array, the jobs that waited for it, the workflow run whose node it is, and the call sets
        that printed into its output. The newest job of a schedule is never deleted."""
