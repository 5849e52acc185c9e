"""Jobs by their ids, and lists of jobs and of arrays by a filter."""

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.records import JobRecord
from holdfast.moves.values import ArrayFilter, JobFilter
from holdfast.store.postgres.connection.session import Tx, to_json


def make_params(filter: JobFilter | ArrayFilter) -> dict[str, Any]:
    """Return the parameters of a filter's query, where null leaves out nothing."""
    return {
        name: (list(value) or None) if isinstance(value, tuple) else value
        for name, value in msgspec.structs.asdict(filter).items()
    }


async def find_listed(tx: Tx, filter: JobFilter) -> list[str]:
    """Return the ids of the jobs that pass a filter, newest first."""
    labels = to_json(dict(filter.labels)) if filter.labels else None
    rows = await tx.rows("list_job_ids", **make_params(filter) | {"labels": labels})
    return [row["id"] for row in rows]


async def read_jobs(tx: Tx, ids: Sequence[str]) -> dict[str, JobRecord]:
    """Return the records of jobs by id; unknown ids are missing."""
    if not ids:
        return {}
    return {job.id: job for job in await tx.list_of(JobRecord, "read_jobs", ids=list(ids))}
