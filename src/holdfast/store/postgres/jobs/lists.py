"""Lists of jobs by a filter."""

from holdfast.moves.values import JobFilter
from holdfast.store.postgres.connection.session import Tx, to_json


async def find_listed(tx: Tx, filter: JobFilter) -> list[str]:
    """Return the ids of the jobs that pass a filter, newest first."""
    params = {
        "states": list(filter.states) or None,
        "queue": filter.queue, "project": filter.project, "owner": filter.owner, "name": filter.name,
        "parent": filter.parent, "part": filter.part, "since": filter.since,
        "labels": to_json(dict(filter.labels)) if filter.labels else None,
        "cause": filter.cause, "min_retries": filter.min_retries, "max_retries": filter.max_retries,
        "host_id": filter.host_id, "before": filter.before, "limit": filter.limit, "prefix": filter.prefix,
        "array_id": filter.array_id, "single": filter.single,
        "executors": filter.executors, "family": filter.family, "supervised": filter.supervised,
    }  # fmt: skip
    return [row["id"] for row in await tx.rows("list_job_ids", **params)]
