"""Reads for many jobs or hosts at once, each one round trip however many are asked for. Part of
`store.port.store.Store`.

Whoever shows a page of jobs with what hangs on each asks here, instead of once for every job. What
nobody has is left out of the answer; nothing here raises NotFound.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from holdfast.core.causes import Cause
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    HostRecord,
    JobRecord,
    MemberRecord,
    TaskRecord,
)


class BatchReads(Protocol):
    """Records by the ids of what they belong to."""

    async def get_jobs(self, job_ids: Collection[str]) -> dict[str, JobRecord]: ...

    async def get_hosts(self, host_ids: Collection[str]) -> dict[str, HostRecord]:
        """By id, terminated ones included."""

    async def list_attempts_of(
        self,
        job_ids: Collection[str],
        *,
        last: int,
        before: int | None = None,
        cause: Cause | None = None,
    ) -> dict[str, list[AttemptRecord]]:
        """Of each job its last `last` attempts, oldest first, without their members (a gang's are
        many).

        before: only attempts with a lower number. cause: only those that ended of it.
        """

    async def get_attempts(
        self, keys: Collection[tuple[str, int]], *, members: bool = False
    ) -> dict[tuple[str, int], AttemptRecord]:
        """By (job id, number); with `members` only where that is asked for."""

    async def list_members_of(
        self, keys: Collection[tuple[str, int]], *, first: int, after: int = -1
    ) -> dict[tuple[str, int], list[MemberRecord]]:
        """Of each attempt how its ranks ended, in their order, at most `first` of those after rank
        `after`."""

    async def list_tasks_of(
        self, job_ids: Collection[str], *, first: int, after: int = -1
    ) -> dict[str, list[TaskRecord]]:
        """Of each job its current tasks in the order of their ranks, at most `first` of those after
        rank `after`."""

    async def list_events_of(
        self, job_ids: Collection[str], *, last: int
    ) -> dict[str, list[EventRecord]]:
        """Of each job its last `last` events, oldest first, as `read_events` shows them
        (STORE-4)."""

    async def queue_places(self, job_ids: Collection[str]) -> dict[str, int]:
        """Of each queued job among them how many of its queue stand before it (priority, then
        place), at most 10 000."""
