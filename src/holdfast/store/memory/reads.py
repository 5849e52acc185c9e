"""Reads for many jobs or hosts at once in memory."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    HostRecord,
    JobRecord,
    MemberRecord,
    TaskRecord,
)
from holdfast.core.states import JobState
from holdfast.store.memory.jobs import MemoryJobs
from holdfast.store.memory.state import MemoryJob


class MemoryReads(MemoryJobs):
    """Records by the ids of what they belong to. See `store.port.reads`."""

    async def get_jobs(self, job_ids: Collection[str]) -> dict[str, JobRecord]:
        """See `BatchReads.get_jobs`."""
        return {
            job_id: self.state.job_record(job_id) for job_id in job_ids if job_id in self.state.jobs
        }

    async def get_hosts(self, host_ids: Collection[str]) -> dict[str, HostRecord]:
        """See `BatchReads.get_hosts`."""
        hosts = self.state.hosts
        return {
            host_id: self.state.host_record(hosts[host_id])
            for host_id in host_ids
            if host_id in hosts
        }

    async def list_attempts_of(
        self,
        job_ids: Collection[str],
        *,
        last: int,
        before: int | None = None,
        cause: Cause | None = None,
    ) -> dict[str, list[AttemptRecord]]:
        """See `BatchReads.list_attempts_of`."""
        found: dict[str, list[AttemptRecord]] = {}
        for job_id in job_ids:
            fitting = [
                attempt
                for attempt in self.state.attempts.get(job_id, [])
                if (before is None or attempt.number < before) and cause in (None, attempt.cause)
            ]
            if fitting:
                found[job_id] = [
                    msgspec.structs.replace(self._attempt(a), members=()) for a in fitting[-last:]
                ]
        return found

    async def get_attempts(
        self, keys: Collection[tuple[str, int]], *, members: bool = False
    ) -> dict[tuple[str, int], AttemptRecord]:
        """See `BatchReads.get_attempts`."""
        found = self._find_attempts(keys)
        if members:
            return found
        return {key: msgspec.structs.replace(attempt, members=()) for key, attempt in found.items()}

    def _find_attempts(
        self, keys: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], AttemptRecord]:
        asked = set(keys)
        return {
            (job_id, attempt.number): self._attempt(attempt)
            for job_id in {job_id for job_id, _ in asked}
            for attempt in self.state.attempts.get(job_id, [])
            if (job_id, attempt.number) in asked
        }

    async def list_members_of(
        self, keys: Collection[tuple[str, int]], *, first: int, after: int = -1
    ) -> dict[tuple[str, int], list[MemberRecord]]:
        """See `BatchReads.list_members_of`."""
        found: dict[tuple[str, int], list[MemberRecord]] = {}
        for key, attempt in self._find_attempts(keys).items():
            members = sorted((m for m in attempt.members if m.rank > after), key=lambda m: m.rank)
            if members:
                found[key] = members[:first]
        return found

    async def list_tasks_of(
        self, job_ids: Collection[str], *, first: int, after: int = -1
    ) -> dict[str, list[TaskRecord]]:
        """See `BatchReads.list_tasks_of`."""
        found: dict[str, list[TaskRecord]] = {}
        for job_id in job_ids:
            tasks = [task for task in await self.list_tasks(job_id) if task.rank > after]
            if tasks:
                found[job_id] = tasks[:first]
        return found

    async def list_events_of(
        self, job_ids: Collection[str], *, last: int
    ) -> dict[str, list[EventRecord]]:
        """See `BatchReads.list_events_of`."""
        asked = set(job_ids)
        found: dict[str, list[EventRecord]] = {}
        for event in self.state.events:
            if event.job_id is not None and event.job_id in asked:
                found.setdefault(event.job_id, []).append(event)
        return {job_id: events[-last:] for job_id, events in found.items()}

    async def queue_places(self, job_ids: Collection[str]) -> dict[str, int]:
        """See `BatchReads.queue_places`."""
        queued = [self.state.jobs[i] for i in self.state.by_state[JobState.QUEUED]]
        asked = set(job_ids)
        return {
            job.row.id: min(10_000, sum(_stands_before(other, job) for other in queued))
            for job in queued
            if job.row.id in asked
        }


def _stands_before(other: MemoryJob, job: MemoryJob) -> bool:
    return other.row.queue == job.row.queue and (-other.priority, other.ord) < (
        -job.priority,
        job.ord,
    )
