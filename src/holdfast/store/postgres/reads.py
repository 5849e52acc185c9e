"""Reads for many jobs or hosts at once in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

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
from holdfast.store.postgres.connection.session import Session
from holdfast.store.postgres.hosts import read_hosts
from holdfast.store.postgres.jobs import read_jobs
from holdfast.store.postgres.records import make_event

T = TypeVar("T")


class ReadsPart:
    """The part of the store that reads in batches. See `store.port.reads`."""

    session: Session

    async def get_jobs(self, job_ids: Collection[str]) -> dict[str, JobRecord]:
        """See `BatchReads.get_jobs`."""
        return await self.session.single(lambda tx: read_jobs(tx, list(job_ids)))

    async def get_hosts(self, host_ids: Collection[str]) -> dict[str, HostRecord]:
        """See `BatchReads.get_hosts`."""
        found = await self.session.single(lambda tx: read_hosts(tx, list(host_ids), True, False))
        return {host.id: host for host in found}

    async def list_attempts_of(
        self,
        job_ids: Collection[str],
        *,
        last: int,
        before: int | None = None,
        cause: Cause | None = None,
    ) -> dict[str, list[AttemptRecord]]:
        """See `BatchReads.list_attempts_of`."""
        params = {"ids": _once(job_ids), "last": last, "before": before, "cause": cause}
        rows = await self.session.rows("read_attempts_of", params)
        return _group([msgspec.convert(row, AttemptRecord) for row in rows])

    async def get_attempts(
        self, keys: Collection[tuple[str, int]], *, members: bool = False
    ) -> dict[tuple[str, int], AttemptRecord]:
        """See `BatchReads.get_attempts`."""
        rows = await self.session.rows("read_attempts_by_key", {**_split(keys), "members": members})
        return {(row["job_id"], row["number"]): msgspec.convert(row, AttemptRecord) for row in rows}

    async def list_members_of(
        self, keys: Collection[tuple[str, int]], *, first: int, after: int = -1
    ) -> dict[tuple[str, int], list[MemberRecord]]:
        """See `BatchReads.list_members_of`."""
        found: dict[tuple[str, int], list[MemberRecord]] = {}
        for row in await self.session.rows(
            "read_members_of", {**_split(keys), "first": first, "after": after}
        ):
            found.setdefault((row["job_id"], row["number"]), []).append(
                msgspec.convert(row["member"], MemberRecord)
            )
        return found

    async def list_tasks_of(
        self, job_ids: Collection[str], *, first: int, after: int = -1
    ) -> dict[str, list[TaskRecord]]:
        """See `BatchReads.list_tasks_of`."""
        rows = await self.session.rows(
            "read_tasks_of", {"ids": _once(job_ids), "first": first, "after": after}
        )
        return _group([msgspec.convert(row, TaskRecord) for row in rows])

    async def list_events_of(
        self, job_ids: Collection[str], *, last: int
    ) -> dict[str, list[EventRecord]]:
        """See `BatchReads.list_events_of`."""
        rows = await self.session.rows("read_events_of", {"ids": _once(job_ids), "last": last})
        return _group([make_event(row) for row in rows])

    async def queue_places(self, job_ids: Collection[str]) -> dict[str, int]:
        """See `BatchReads.queue_places`."""
        rows = await self.session.rows("read_queue_places", {"ids": _once(job_ids)})
        return {row["id"]: row["place"] for row in rows}


def _once(keys: Collection[T]) -> list[T]:
    """Each key once, so that nothing is read twice for a key that was asked for twice."""
    return list(dict.fromkeys(keys))


def _split(keys: Collection[tuple[str, int]]) -> dict[str, Any]:
    asked = _once(keys)
    return {"ids": [job_id for job_id, _ in asked], "numbers": [number for _, number in asked]}


def _group(records: list[Any]) -> dict[str, list[Any]]:
    grouped: dict[str, list[Any]] = {}
    for record in records:
        grouped.setdefault(record.job_id, []).append(record)
    return grouped
