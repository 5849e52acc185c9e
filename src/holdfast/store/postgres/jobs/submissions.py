"""The writes of submissions: new jobs, or the earlier ones that their idempotency keys name."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.records import JobRecord
from holdfast.core.settings.resolve import Value
from holdfast.moves.jobs import requests
from holdfast.moves.jobs.quotas import sets_quota
from holdfast.moves.rows import DEPENDENCY
from holdfast.moves.values import NewJob, NodeOrigin, Submitted
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.dependencies import find_parents, say_waits, write_dependencies
from holdfast.store.postgres.jobs.lists import read_jobs
from holdfast.store.postgres.settings import check_quotas

_SPEC_COLUMNS = (
    *("project", "priority", "tasks", "gpus", "cpu_slots", "memory_bytes", "labels"),
    *("idempotency_key", "start_at"),
)


def ask_insert(jobs: Sequence[NewJob], now: datetime | None) -> dict[str, Any]:
    """Return the parameters of the statement `insert_jobs`, except the rows."""
    return {
        "names": sorted({job.queue for job in jobs}),
        "now": now,
        "submitted": requests.SUBMITTED,
        "waits": requests.WAITS_FOR_START,
        "limited_too": True,
        "silent": False,
    }


async def insert_jobs(
    tx: Tx, jobs: Sequence[NewJob], environment: Mapping[str, Value], now: datetime | None
) -> list[Submitted]:
    """Write jobs within a transaction, as `submit_jobs` does."""
    hashes, params = [requests.hash_spec(job.spec) for job in jobs], ask_insert(jobs, now)
    parents = await find_parents(tx, [job.spec for job in jobs])
    rows = [_new_row(job, digest, parents) for job, digest in zip(jobs, hashes, strict=True)]
    params = {**params, "rows": to_json(rows)}
    written = await tx.rows("insert_jobs", **params)
    ids = [job.id for job in jobs]
    if len(written) == len(jobs):  # nearly always; a new job's row is its whole record
        records = {row["id"]: msgspec.convert(row, JobRecord) for row in written}
    else:
        held = await tx.rows("hold_queues", names=params["names"])
        there = {row["name"] for row in held}
        for name in params["names"]:
            if name not in there:
                raise requests.refuse_queue(name)
        # A queue may have been created since; the statement skips jobs that it has written.
        written = [*written, *await tx.rows("insert_jobs", **params)]
        ids = await _find_earlier(tx, jobs, hashes)
        records = await read_jobs(tx, ids)
    if any(row["limited"] for row in written) or (written and sets_quota(environment)):
        # After the rows are written, so that the project's lock is not held in a wait.
        asked = [(row["project"], row["gpus"] * row["tasks"]) for row in written]
        await check_quotas(tx, asked, environment, written=[row["id"] for row in written])
    new = {row["id"] for row in written}
    waiting = [job for job in jobs if job.spec.after and job.id in new]
    if waiting:
        specs = {job.id: job.spec for job in waiting}
        await write_dependencies(tx, specs, parents, params["now"])
        records |= await read_jobs(tx, [job.id for job in waiting])
    return [
        Submitted(job=records[found], created=found == job.id)
        for job, found in zip(jobs, ids, strict=True)
    ]


def _new_row(job: NewJob, digest: str, parents: Mapping[str, str]) -> dict[str, Any]:
    row = make_row(job, digest)
    if job.spec.after:
        row |= {"wait_cause": DEPENDENCY, "wait_reason": say_waits(job.spec, parents)}
    return row


def make_row(job: NewJob, digest: str) -> dict[str, Any]:
    """Return a new job's row for `insert_jobs`. digest: the hash of its spec, in hex."""
    spec = job.spec
    return {
        "id": job.id,
        "name": spec.title,
        "owner": job.owner,
        "queue": job.queue,
        "spec": spec.without_secrets(),
        "spec_hash": digest,
        **{name: getattr(spec, name) for name in _SPEC_COLUMNS},
        "secrets": requests.list_secrets(job) or None,
        **({} if job.origin is None else _name_origin(job.origin)),
    }


def _name_origin(origin: NodeOrigin) -> dict[str, Any]:
    return {"origin_run": origin.run, "origin_node": origin.node}


async def _find_earlier(tx: Tx, jobs: Sequence[NewJob], hashes: Sequence[str]) -> list[str]:
    """Return the id of each submission's job: its own, or that of the earlier job that its
    idempotency key names."""
    keyed = [job for job in jobs if job.spec.idempotency_key is not None]
    rows = await tx.rows(
        "find_submitted",
        ids=[job.id for job in jobs],
        projects=[job.spec.project for job in keyed],
        keys=[job.spec.idempotency_key for job in keyed],
    )
    by_id = {row["id"]: row for row in rows}
    by_key = {
        (row["project"], row["idempotency_key"]): row
        for row in rows
        if row["idempotency_key"] is not None
    }
    ids = []
    for job, digest in zip(jobs, hashes, strict=True):
        key = job.spec.idempotency_key
        row = by_id.get(job.id) or by_key[job.spec.project, key]
        if row["spec_hash"].hex() != digest:
            before = (await read_jobs(tx, [row["id"]]))[row["id"]]
            named = None if row["id"] == job.id else key
            raise requests.refuse_mismatch(row["id"], before.spec, job.spec, named)
        ids.append(row["id"])
    return ids
