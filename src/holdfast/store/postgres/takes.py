"""Jobs that hosts take for themselves, in the transaction of their own syncs (`core.placement.takes`)."""

from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import PASSED_SECONDS, TakeTerms, count_worth, plan_takes
from holdfast.core.placement.types import Candidate
from holdfast.core.records import JobRecord
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobEvent
from holdfast.core.transitions import JOB, sources
from holdfast.moves import requests
from holdfast.moves.reports import Draft
from holdfast.moves.values import (
    HostSync,
    HostSynced,
    NewJob,
    OfferedJob,
    OfferedTask,
    Submitted,
    TaskOffer,
)
from holdfast.store.postgres.admission import as_capacity
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.store.postgres.jobs import ask_insert, make_row

RESERVE_FROM = [str(s) for s in sources(JOB, JobEvent.RESERVE)]
Step = tuple[str, dict[str, Any]]
MAX_ALIKE = 512
MAX_ALIKE_CHARS = 16_384
_decode_spec = msgspec.json.Decoder(JobSpec).decode


async def plan_steps(tx: Tx, drafts: Sequence[Draft], terms: TakeTerms, at: datetime) -> list[Step]:
    """Return the statements that let these hosts take jobs; none where there is nothing to take.

    Their heartbeats are locked, so the room that is read stays theirs. Marks the drafts that are
    settled.
    """
    more = sum(max(0, d.sync.ahead - d.sync.held) for d in drafts)
    limit = count_worth(sum(len(d.sync.ended) for d in drafts), more)
    ids = [d.sync.host_id for d in drafts]
    return _choose(drafts, terms, limit, *await tx.many(*_ask(ids, terms, limit, at)))


async def submit_to_host(
    tx: Tx, job: NewJob, taker: HostSync, terms: TakeTerms, now: datetime | None
) -> tuple[Submitted, HostSynced] | None:
    """`LeaseStore.submit_to_host`. Locks in the one order: queues, hosts, jobs."""
    limit = count_worth(1)
    row = make_row(job, requests.hash_spec(job.spec))
    new = {**ask_insert([job], now), "rows": to_json([row]), "limited_too": False}
    written, _, *found = await tx.many(
        ("insert_jobs", new),
        ("lock_hosts", {"ids": [taker.host_id]}),
        *_ask([taker.host_id], terms, limit, now),
    )
    if not written:
        return None
    draft = Draft(taker, "ok")
    rooms = [row for row in found[1] if row["incarnation"] == taker.incarnation]
    draft.name = rooms[0]["name"] if rooms else ""
    steps = _choose([draft], terms, limit, found[0], rooms, found[2])
    if steps:
        give_taken([draft], steps, *await tx.last(*steps))
    submitted = msgspec.convert(written[0], JobRecord)
    return Submitted(job=submitted, created=True), draft.answer()


def _ask(ids: Sequence[str], terms: TakeTerms, limit: int, at: datetime | None) -> list[Step]:
    return [
        ("begin_takes", {"revision": terms.revision, "seconds": PASSED_SECONDS, "now": at}),
        ("read_room", {"ids": list(ids)}),
        ("read_takable", {"ids": list(ids), "limit": limit}),
    ]


def _choose(
    drafts: Sequence[Draft], terms: TakeTerms, limit: int, begun: Rows, rooms: Rows, queued: Rows
) -> list[Step]:
    if not begun or not begun[0]["allowed"]:
        return []
    by_host = {d.sync.host_id: d for d in drafts}
    found = plan_takes(
        [msgspec.convert(row, Candidate) for row in queued],
        [as_capacity(row) for row in rooms],
        terms,
        begun[0]["passed"],
        ahead={d.sync.host_id: d.sync.ahead for d in drafts},
        cut=len(queued) >= limit,
    )
    for host_id in found.settled:
        by_host[host_id].settled = terms.whole
    if not found.placements:
        return []
    rows = {row["job_id"]: row for row in queued}
    seats = [p.tasks[0] for p in found.placements]
    jobs = [p.job_id for p in found.placements]
    ask = {
        "jobs": jobs,
        "epochs": [p.epoch for p in found.placements],
        "ttls": [
            rows[p.job_id]["lease_ttl_seconds"] or terms.ttls[rows[p.job_id]["queue"]]
            for p in found.placements
        ],
        "host_ids": [s.host_id for s in seats],
        "hosts": [by_host[s.host_id].name for s in seats],
        "incarnations": [s.incarnation for s in seats],
        "devices": [f"{{{','.join(map(str, s.devices))}}}" for s in seats],
        "ahead": [s.ahead for s in seats],
        "queues": sorted({rows[job_id]["queue"] for job_id in jobs}),
        "revision": terms.revision,
        "reserve_from": RESERVE_FROM,
        "now": begun[0]["now"],
    }
    return [("take_jobs", ask), ("read_taken_secrets", {"ids": jobs})]


def give_taken(drafts: Sequence[Draft], steps: Sequence[Step], rows: Rows, hidden: Rows) -> None:
    """Put the offers of jobs that were taken into the drafts. A host whose job another transaction
    got first is not settled."""
    by_host = {d.sync.host_id: d for d in drafts}
    secrets = {row["job_id"]: row["secrets"] for row in hidden}
    for row in rows:
        task = OfferedTask(
            key=TaskKey(row["id"], 0, row["epoch"]),
            attempt=row["attempts"],
            host_id=row["host_id"],
            devices=tuple(row["devices"]),
            lease_ttl_seconds=row["ttl"],
            ahead=row["ahead"],
        )
        offer = TaskOffer(task=task, job=make_offered(row), secrets=secrets.get(row["id"], {}))
        by_host[task.host_id].offers.append(offer)
    if len(rows) < len(steps[1][1]["ids"]):
        for d in drafts:
            d.settled = False


def make_offered(row: dict[str, Any]) -> OfferedJob:
    """Return what orders need of a job's row. Alike jobs, of one submission mostly, share it."""
    make = _make_alike if len(row["spec"]) <= MAX_ALIKE_CHARS else _make_alike.__wrapped__
    return make(
        row["name"],
        row["queue"],
        row["project"],
        row["memory_bytes"],
        row["cpu_slots"],
        row["tasks"],
        row["spec"],
    )


@lru_cache(MAX_ALIKE)
def _make_alike(
    name: str, queue: str, project: str, memory_bytes: int, cpu_slots: int, tasks: int, spec: str
) -> OfferedJob:
    return OfferedJob(
        name=name,
        queue=queue,
        project=project,
        memory_bytes=memory_bytes,
        cpu_slots=cpu_slots,
        tasks=tasks,
        spec=_decode_spec(spec),
    )
