"""Jobs that hosts take for themselves, in the transaction of their own syncs (`core.placement.takes`)."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.core.host_faults import find_runtime_word
from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import PASSED_SECONDS, TakeTerms, count_worth, plan_takes
from holdfast.core.placement.types import Candidate
from holdfast.core.records import JobRecord
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobEvent
from holdfast.core.transitions import JOB, sources
from holdfast.moves import requests
from holdfast.moves.reports import Draft, count_wanted
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
from holdfast.store.postgres.connection.session import Rows, Session, Tx, to_json
from holdfast.store.postgres.jobs import ask_insert, make_row

RESERVE_FROM = [str(s) for s in sources(JOB, JobEvent.RESERVE)]
Step = tuple[str, dict[str, Any]]
MAX_ALIKE = 512
MAX_ROOMS = 1024
MAX_ALIKE_CHARS = 16_384
_decode_spec = msgspec.json.Decoder(JobSpec).decode


class Choices:
    """What transactions of this process choose to take, until they have ended, so that those beside
    them choose other jobs (TAKE-4).

    A transaction leaves alone what another has locked, so without this the later one of two would
    find the jobs of its plan gone, and its host idle.
    """

    def __init__(self) -> None:
        self._chosen: set[str] = set()
        self._gate = asyncio.Lock()  # from reading the queues to the choice

    async def plan_steps(
        self, tx: Tx, drafts: Sequence[Draft], terms: TakeTerms, at: datetime
    ) -> list[Step]:
        """Return the statements that let these hosts take jobs; none where there is nothing to take.
        Must be followed by `release`.

        Their heartbeats are locked, so the room that is read stays theirs. Marks the drafts that are
        settled.
        """
        worth = count_worth(sum(count_wanted(d.sync) for d in drafts))
        ids = [d.sync.host_id for d in drafts]
        async with self._gate:
            # One that ends while the queues are read may still be queued in what is read.
            chosen = frozenset(self._chosen)
            limit = worth + len(chosen)
            begun, rooms, queued = await tx.many(*_ask(ids, terms, limit, at))
            cut = len(queued) >= limit
            left = [row for row in queued if row["job_id"] not in chosen] if chosen else queued
            cut = cut or len(left) > worth
            steps = _choose(drafts, terms, begun, rooms, left[:worth], cut=cut)
            self._chosen.update(_list_jobs(steps))
        return steps

    def release(self, steps: Sequence[Step]) -> None:
        """Forget a choice: its jobs are taken, or queued as before."""
        self._chosen.difference_update(_list_jobs(steps))


def _list_jobs(steps: Sequence[Step]) -> Sequence[str]:
    return steps[0][1]["jobs"] if steps else ()


class Placing:
    """Submissions that place their job on a host that waits with room.

    The plan is made on the room that was found the last time, and written by one statement that
    compares it under the host's lock; where it differs, or other jobs are queued, nothing is written,
    and the plan is made of what is read then. So a host that is found as it was before costs one
    round trip, and one that is not, two more.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._rooms: dict[str, dict[str, Any]] = {}  # as read_room had them, by host
        session.warm_up_with(_warm_up)

    async def submit_to_host(
        self, job: NewJob, taker: HostSync, terms: TakeTerms, now: datetime | None
    ) -> tuple[Submitted, HostSynced] | None:
        """`LeaseStore.submit_to_host`."""
        row = make_row(job, requests.hash_spec(job.spec))
        room = self._rooms.pop(taker.host_id, None)
        plain = not (job.spec.after or job.spec.supervised or job.origin or job.spec.start_at)
        if room is not None and plain and room["incarnation"] == taker.incarnation:
            found = await self._place(job, row, taker, terms, room, now)
            if found is not None:
                self._rooms[taker.host_id] = room
                return found
        return await self._session.transact(
            lambda tx: self._submit(tx, job, row, taker, terms, now), keep_plans=True
        )

    async def _place(
        self,
        job: NewJob,
        row: Mapping[str, Any],
        taker: HostSync,
        terms: TakeTerms,
        room: dict[str, Any],
        now: datetime | None,
    ) -> tuple[Submitted, HostSynced] | None:
        """Write a job and its place in `room`; nothing where that is not what there is. The statement
        may be sent again after a lost connection, because a repeated id changes nothing."""
        takes = plan_takes(
            [_make_candidate(job)], [as_capacity(room)], terms, (), ahead={}, cut=False
        )
        if not takes.placements:
            return None
        (seat,), ttl = takes.placements[0].tasks, job.spec.lease_ttl_seconds
        ask = {
            **_ask_place(row, taker.host_id, room),
            "devices": list(seat.devices),
            "ttl": ttl or terms.ttls[job.queue],
            "revision": terms.revision,
            "now": now,
        }
        _, written = await self._session.single(
            lambda tx: tx.many(("begin_placing", {"host_id": taker.host_id}), ("place_job", ask))
        )
        if not written:
            return None
        draft = Draft(taker, "ok")
        draft.name, draft.settled = room["name"], bool(takes.settled) and terms.whole
        task = OfferedTask(
            key=TaskKey(job.id, 0, 1),
            attempt=1,
            host_id=taker.host_id,
            devices=seat.devices,
            lease_ttl_seconds=ask["ttl"],
        )
        offered = make_offered({**written[0], "spec": ask["spec"]})
        draft.offers.append(TaskOffer(task=task, job=offered, secrets=row["secrets"] or {}))
        submitted = msgspec.convert(written[0], JobRecord)
        return Submitted(job=submitted, created=True), draft.answer()

    async def _submit(
        self,
        tx: Tx,
        job: NewJob,
        row: Mapping[str, Any],
        taker: HostSync,
        terms: TakeTerms,
        now: datetime | None,
    ) -> tuple[Submitted, HostSynced] | None:
        """Write a job, and let the host take what it may. Locks in the one order: queues, hosts,
        jobs."""
        limit = count_worth(1)
        new = {**ask_insert([job], now), "rows": to_json([row]), "limited_too": False}
        written, _, *found = await tx.many(
            ("insert_jobs", new),
            ("lock_hosts", {"ids": [taker.host_id]}),
            *_ask([taker.host_id], terms, limit, now),
        )
        if not written:
            return None
        draft = Draft(taker, "ok")
        rooms = [room for room in found[1] if room["incarnation"] == taker.incarnation]
        draft.name = rooms[0]["name"] if rooms else ""
        cut = len(found[2]) >= limit
        steps = _choose([draft], terms, found[0], rooms, found[2], cut=cut)
        if steps:
            give_taken([draft], steps, *await tx.last(*steps))
        if [offer.task.key.job_id for offer in draft.offers] == [job.id] and len(found[2]) == 1:
            if len(self._rooms) >= MAX_ROOMS:
                self._rooms.clear()
            self._rooms[taker.host_id] = rooms[0]
        submitted = msgspec.convert(written[0], JobRecord)
        return Submitted(job=submitted, created=True), draft.answer()


def _ask_place(row: Mapping[str, Any], host_id: str, room: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `place_job` that tell of a job and its host."""
    return {
        **row,
        "labels": to_json(row["labels"]),
        "spec": to_json(row["spec"]),
        "secrets": to_json(row["secrets"]) if row["secrets"] else None,
        "host_id": host_id,
        "room": to_json(room),
        "submitted": requests.SUBMITTED,
    }


async def _warm_up(tx: Tx) -> None:
    """Run what places a job, for no queue and no host."""
    job, terms = (
        NewJob(id="", spec=JobSpec(argv=("true",)), queue=""),
        TakeTerms(revision=0, ttls={}, whole=False),
    )
    row = make_row(job, requests.hash_spec(job.spec))
    place = {**_ask_place(row, "", {}), "devices": [], "ttl": 1.0, "revision": 0, "now": None}
    new = {**ask_insert([job], None), "rows": to_json([row]), "limited_too": False}
    await tx.many(
        ("begin_placing", {"host_id": ""}),
        ("place_job", place),
        ("insert_jobs", new),
        ("lock_hosts", {"ids": [""]}),
        *_ask([""], terms, count_worth(1), None),
    )


def _make_candidate(job: NewJob) -> Candidate:
    """Return a new job as read_takable would."""
    spec = job.spec
    return Candidate(
        job_id=job.id,
        epoch=0,
        queue=job.queue,
        project=spec.project,
        priority=spec.priority,
        tasks=spec.tasks,
        gpus=spec.gpus,
        cpu_slots=spec.cpu_slots,
        memory_bytes=spec.memory_bytes,
        lease_ttl_seconds=spec.lease_ttl_seconds,
        host_labels=spec.host_labels,
        runtime=find_runtime_word(spec.image, spec.runtime),
        supervised=spec.supervised,
    )


def _ask(ids: Sequence[str], terms: TakeTerms, limit: int, at: datetime | None) -> list[Step]:
    return [
        ("begin_takes", {"revision": terms.revision, "seconds": PASSED_SECONDS, "now": at}),
        ("read_room", {"ids": list(ids)}),
        ("read_takable", {"ids": list(ids), "limit": limit}),
    ]


def _choose(
    drafts: Sequence[Draft], terms: TakeTerms, begun: Rows, rooms: Rows, queued: Rows, *, cut: bool
) -> list[Step]:
    if not begun or not begun[0]["allowed"]:
        return []
    by_host = {d.sync.host_id: d for d in drafts}
    found = plan_takes(
        [_read_candidate(row) for row in queued],
        [as_capacity(row) for row in rooms],
        terms,
        begun[0]["passed"],
        ahead={d.sync.host_id: d.sync.ahead for d in drafts},
        cut=cut,
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
    return [("take_jobs", ask)]


def _read_candidate(row: dict[str, Any]) -> Candidate:
    return Candidate(
        job_id=row["job_id"],
        epoch=row["epoch"],
        queue=row["queue"],
        project=row["project"],
        priority=row["priority"],
        tasks=row["tasks"],
        gpus=row["gpus"],
        cpu_slots=row["cpu_slots"],
        memory_bytes=row["memory_bytes"],
        avoid_hosts=tuple(row["avoid_hosts"] or ()),
        barred_hosts=tuple(row["barred_hosts"] or ()),
        lease_ttl_seconds=row["lease_ttl_seconds"],
        host_labels=row["host_labels"] or {},
        runtime=row["runtime"] or "",
        supervised=row["supervised"] or False,
        may_wait=row["may_wait"],
    )


def give_taken(drafts: Sequence[Draft], steps: Sequence[Step], rows: Rows) -> None:
    """Put the offers of jobs that were taken into the drafts. A host whose job another transaction
    got first is not settled."""
    by_host = {d.sync.host_id: d for d in drafts}
    ((_, asked),) = steps
    for row in rows:
        at = row["n"] - 1
        job_id, host_id = asked["jobs"][at], asked["host_ids"][at]
        task = OfferedTask(
            key=TaskKey(job_id, 0, asked["epochs"][at] + 1),
            attempt=row["attempts"],
            host_id=host_id,
            devices=tuple(row["devices"] or ()),
            lease_ttl_seconds=asked["ttls"][at],
            ahead=asked["ahead"][at],
        )
        offer = TaskOffer(task=task, job=make_offered(row), secrets=row["secrets"] or {})
        by_host[host_id].offers.append(offer)
    if len(rows) < len(asked["jobs"]):
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
