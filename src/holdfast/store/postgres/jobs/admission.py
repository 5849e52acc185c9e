"""Admission in PostgreSQL: read candidates and room, and reserve the leader's placements."""

from collections.abc import Collection, Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import msgspec

from holdfast.core.causes import UNSTARTED
from holdfast.core.host_faults import Hindrance, list_able_labels, list_held, list_lacking
from holdfast.core.placement.plan import (
    Candidate,
    Capacity,
    JobPlacement,
    QuotaLeft,
    RunningTask,
    Share,
    silence_seconds,
)
from holdfast.core.placement.types import Kin
from holdfast.core.settings.resolve import Value, resolve
from holdfast.moves.jobs import dispatch, members, requests
from holdfast.moves.jobs.quotas import Allotment, plan_owned, sets_quota, sets_share
from holdfast.moves.jobs.room import RoomCheck, find_served, plan_headroom
from holdfast.moves.values import AdmissionSnapshot, Released, Reserved
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Rows, Session, Step, Tx
from holdfast.store.postgres.jobs.lists import read_jobs
from holdfast.store.postgres.jobs.reserve import Reservation
from holdfast.store.postgres.moves import load_moves, write_moves
from holdfast.store.postgres.settings import (
    lock_quotas,
    read_quotas,
    read_quotas_left,
    read_shares,
    read_switches,
)

RELEASE_BATCH = 1000


class PostgresAdmission(OnSession):
    """The jobs that could start, and the writes that start them."""

    def __init__(self, session: Session, environment: Mapping[str, Value]) -> None:
        super().__init__(session)
        self.environment = environment

    async def release_due(self, retry_limit: int | None = None, *, now: Now = None) -> Released:
        """Queue waiting jobs whose time has come, in batches; of retries at most `retry_limit`.

        RETRY-6: the kill switch (`retries_enabled` of the cluster, its environment and the job's
        project; any that is off) is read in the transaction that dispatches. A due retry under it
        becomes `retries_held` (event job.retry_held, once); one no longer under it backs off again
        until its `retry_at`. Each dispatch leaves its audit: event job.retry_dispatched with
        retry_count, cause, due_at and waited_seconds.
        """
        held_projects = await self.session.single(lambda tx: self._look(tx, now))
        done, more = Released(), held_projects is not None
        while more:
            rest = None if retry_limit is None else max(0, retry_limit - done.retries)
            found, more = await self.session.transact(
                partial(self._release, held_projects or [], rest, now)
            )
            done = Released(
                started=done.started + found.started,
                retries=done.retries + found.retries,
                held=done.held + found.held,
                left=found.left,
            )
        return done

    async def _look(self, tx: Tx, now: datetime | None) -> list[str] | None:
        """Return the projects of retries that a kill switch holds; None where no job is due."""
        row = await tx.one("look_due", now=now)
        if row is None:
            return None
        held: list[str] = row["held"]
        switches = dispatch.Switches(row["cluster"], self.environment, row["off"])
        if (
            row["starts"]
            or row["retries"]
            or any(switches.held_by(project) is None for project in held)
        ):
            return held
        return None

    async def _release(
        self, held_projects: Sequence[str], limit: int | None, now: datetime | None, tx: Tx
    ) -> tuple[Released, bool]:
        """Release one batch of each kind of waiting job. Return also whether more of them may be
        due."""
        at = await tx.now(now)
        switches = await read_switches(tx, self.environment)
        off, free = switches.projects_off, [p for p in held_projects if switches.held_by(p) is None]
        batch = RELEASE_BATCH if limit is None else min(limit, RELEASE_BATCH)
        found = await tx.many(
            ("find_due_starts", {"now": at, "limit": RELEASE_BATCH}),
            (
                "find_due_held",
                {
                    "now": at,
                    "limit": RELEASE_BATCH,
                    "everywhere": switches.everywhere is not None,
                    "off": off,
                },
            ),
            ("find_resumed", {"projects": free, "limit": RELEASE_BATCH}),
            (
                "find_due_retries",
                {"now": at, "limit": batch if switches.everywhere is None else 0, "off": off},
            ),
        )
        starts, held, resumed, due = ([row["id"] for row in rows] for rows in found)
        m = await load_moves(tx, [*starts, *held, *resumed, *due], at)
        for job_id in starts:
            dispatch.release_start(m, m.jobs[job_id])
        for job in (m.jobs[job_id] for job_id in held):
            dispatch.hold_due(m, job, switches.held_by(job.project) or "a kill switch")
        for job_id in resumed:
            dispatch.resume_retry(m, m.jobs[job_id])
        for job_id in due:
            dispatch.dispatch_retry(m, m.jobs[job_id])
        await write_moves(tx, m)
        spent = limit is not None and len(due) >= limit
        # Where no row was found though a job is due, another transaction held its row for a moment.
        left = (
            (spent or not due)
            and switches.everywhere is None
            and bool(await tx.value("retries_left", now=at, off=off))
        )
        full = (
            max(len(starts), len(held)) >= RELEASE_BATCH
            or (len(due) >= batch and not spent)
            or bool(resumed)
        )
        return Released(started=len(starts), retries=len(due), held=len(held), left=left), full

    @reads
    async def read_admission(
        self, tx: Tx, limit: int, *, but: Sequence[str] = (), now: Now = None
    ) -> AdmissionSnapshot:
        """Return the queued jobs that may be started next, at most `limit` of each queue, and the
        free room of the hosts.

        but: ids of jobs to leave out.
        """
        return await self._read(tx, limit, but, now, whole=False)

    @reads
    async def read_line(self, tx: Tx, limit: int, *, now: Now = None) -> AdmissionSnapshot:
        """Return what `read_admission` does, with the jobs that cannot start now but may later: those of
        queues that no host serves or that run as many jobs as they may, and of projects whose quota is used
        up. Only those of paused queues are missing."""
        return await self._read(tx, limit, (), now, whole=True)

    async def _read(
        self, tx: Tx, limit: int, but: Sequence[str], now: Now, *, whole: bool
    ) -> AdmissionSnapshot:
        revision = await tx.one(
            "begin_admission", now=now, limits="max_running" in self.environment, whole=whole
        )
        if revision is None or not revision["anything_queued"]:
            # Nearly every end of a job leads here, and thousands of hosts need not be read for it.
            rev = 0 if revision is None else revision["settings_rev"]
            return AdmissionSnapshot(candidates=(), hosts=(), headroom={}, settings_rev=rev)
        cluster = [("cluster", revision["settings"]), ("environment", self.environment)]
        dead, interval = (
            float(resolve(name, cluster).value or 0)
            for name in ("dead_host_seconds", "sync_interval_seconds")
        )
        headroom, names = _open_queues(revision, cluster)
        if whole:
            names = [queue["name"] for queue in revision["queues"] if not queue["paused"]]
        quotas: dict[str, QuotaLeft] = {}
        if revision["limited"] or sets_quota(self.environment):
            projects = [row["name"] for row in await tx.rows("list_queued_projects")]
            quotas = await read_quotas_left(tx, await read_quotas(tx, projects, self.environment))
        shares: dict[str, Share] = {}
        if revision["shared"] or sets_share(self.environment):
            shares = await read_shares(tx, self.environment)
        # Members of jobs that run already go first.
        blocked = (
            await _read_blocked(tx, limit, revision["now"]) if revision["anything_blocked"] else []
        )
        silence = silence_seconds(dead, interval)
        asked = {"limit": limit, "but": list(but), "now": revision["now"]}
        room, queued, *owned = await tx.many(
            ask_capacity(None, silence=silence, now=revision["now"]),
            _ask_candidates(names, {} if whole else quotas, asked),
            *_ask_owned(names, shares, asked),
        )
        hosts = [as_capacity(row) for row in room]
        queued = _put_first(owned[0], queued) if owned else queued
        served = find_served(hosts)  # without the silent ones
        rows = [row for row in queued if whole or served(row["queue"])]
        return AdmissionSnapshot(
            candidates=(*blocked, *(msgspec.convert(row, Candidate) for row in rows)),
            hosts=tuple(hosts),
            headroom=headroom,
            settings_rev=revision["settings_rev"],
            quotas=quotas,
            shares=shares,
            lowest_preemptible=revision["lowest_preemptible"],
        )

    async def note_passed(self, job_ids: Sequence[str], *, holds: bool, now: Now = None) -> None:
        """Write which jobs the leader's round passed over, and whether the round held room back for
        any of them. Hosts that take jobs read this (TAKE-2). A crash of the server may lose it."""
        given = {"ids": list(job_ids), "holds": holds, "now": now}
        await self.session.transact(lambda tx: tx.run("note_passed", **given), relaxed=True)

    async def read_running(self, *, now: Now = None) -> list[RunningTask]:
        """Return every task that holds room. The caller, which knows the settings, fills in
        `ends_in_seconds`."""
        return await self.session.list_of(RunningTask, "read_running", now=now)

    async def read_spans(self, kin: Collection[Kin]) -> dict[Kin, float]:
        """Return how long jobs took, by project and kin (`core.placement.types.find_kin`): the
        longest time among the last ten jobs on record that succeeded with their first attempt. A
        kin without such jobs is missing."""
        of, names = [project for project, _ in kin], [name for _, name in kin]
        rows = await self.session.rows("read_spans", projects=of, kin=names)
        return {(row["project"], row["kin"]): row["seconds"] for row in rows}

    @reads
    async def list_reserved(
        self, tx: Tx, ids: Sequence[str] | None = None, *, now: Now = None
    ) -> list[Reserved]:
        """Return the jobs that are reserved and do not run yet: all of them, or those of `ids`."""
        unstarted = [str(cause) for cause in UNSTARTED]
        rows = await tx.rows("read_reserved", ids=ids, unstarted=unstarted, now=now)
        jobs = await read_jobs(tx, [row["id"] for row in rows])
        return [
            Reserved(
                job=jobs[row["id"]],
                seconds=(row["now"] - row["reserved_at"]).total_seconds(),
                ran_before=row["ran_before"],
            )
            for row in rows
            if row["id"] in jobs
        ]

    @transacts
    async def expire_reservations(
        self, tx: Tx, reservation_seconds: float, *, now: Now = None
    ) -> list[str]:
        """Queue jobs again whose reservation was never offered to its host within
        `reservation_seconds` (attempt ended, outcome expired; no charge; the attempt number is not
        reused). Where some ranks were offered and others not, a drain begins (cause start_timeout).
        Reservations offered to all are left to their leases. Returns job ids."""
        at = await tx.now(now)
        before = at - timedelta(seconds=reservation_seconds)
        found = [row["id"] for row in await tx.rows("find_unoffered", before=before)]
        if not found:
            return []
        m = await load_moves(tx, found, at)
        still = {row["id"] for row in await tx.rows("find_unoffered", before=before)}
        late = (job for job in m.jobs.values() if job.id in still)
        expired = [job.id for job in late if requests.expire_start(m, job, reservation_seconds)]
        await write_moves(tx, m)
        return expired


async def plan_reservation(
    tx: Tx,
    environment: Mapping[str, Value],
    placements: Sequence[JobPlacement],
    ttls: Mapping[str, float],
    now: datetime | None,
) -> Reservation | None:
    """Return the reservation of the placements of the leader that still fit; None where none fits.
    Locks are taken in the one order: queues, hosts, and then projects, jobs, tasks."""
    if not placements:
        return None
    host_ids = sorted({some.host_id for p in placements for some in p.tasks})
    _, limited, _, capacity, clock = await tx.many(
        ("share_queues", {"names": sorted({p.queue for p in placements})}),
        ("look_for_quotas", None),
        ("lock_hosts", {"ids": host_ids}),
        ask_capacity(host_ids),
        ("read_now", {"now": now}),
    )
    room = RoomCheck(as_capacity(row) for row in capacity)
    allotment = Allotment({})
    if limited[0]["limited"] or sets_quota(environment):
        allotment = await _allot(tx, environment, {p.project for p in placements})
    fitting = [p for p in placements if p.tasks and _fits(p, room, allotment)]
    (at,) = clock[0].values()
    return Reservation(fitting, ttls, room.name, at) if fitting else None


def _open_queues(
    revision: Mapping[str, Any], cluster: Sequence[tuple[str, Mapping[str, Any]]]
) -> tuple[dict[str, int], list[str]]:
    """Return queue → number of further jobs that the queue may run, for limited queues, and the
    names of all queues that may start a job."""
    queues = revision["queues"]
    limits = {
        q["name"]: _limit(resolve("max_running", [("queue", q["settings"]), *cluster]).value)
        for q in queues
    }
    headroom = plan_headroom(limits, revision["live"] or {})
    names = [
        q["name"]
        for q in queues
        if not q["paused"] and q["served"] and headroom.get(q["name"], 1) > 0
    ]
    return headroom, names


async def _allot(tx: Tx, environment: Mapping[str, Value], projects: Set[str]) -> Allotment:
    """Return what the projects may still start. Projects with quotas are locked, so that two
    leaders that overlap for a moment cannot exceed a quota together."""
    quotas = await read_quotas(tx, projects, environment)
    if quotas:
        await lock_quotas(tx, quotas)
    return Allotment(await read_quotas_left(tx, quotas))


def _limit(value: Value) -> int | None:
    return None if value is None else int(value)


async def read_capacity(tx: Tx, ids: Sequence[str]) -> list[Capacity]:
    """Return the free room of the hosts among `ids` that are active."""
    (rows,) = await tx.many(ask_capacity(ids))
    return [as_capacity(row) for row in rows]


def ask_capacity(
    ids: Sequence[str] | None, *, silence: float | None = None, now: Now = None
) -> Step:
    """Return the query for the room of active hosts: of all active hosts where `ids` is None."""
    given = {"ids": ids, "silence": silence, "now": now}
    return "read_capacity", given


def as_capacity(row: Mapping[str, Any]) -> Capacity:
    """Return a host's free room: its size without the resources of its live leases."""
    faults = msgspec.convert(row["faults"], tuple[Hindrance, ...])
    busy = {*row["busy_devices"], *list_held(faults)}
    return Capacity(
        host_id=row["host_id"],
        name=row["name"],
        incarnation=row["incarnation"],
        queues=frozenset(row["queues"]),
        labels=list_able_labels(row["labels"], faults),
        free_cpu_slots=row["cpu_slots"] - row["busy_cpu_slots"],
        free_memory_bytes=row["memory_bytes"] - row["busy_memory_bytes"],
        free_devices=tuple(sorted(g["index"] for g in row["gpus"] if g["index"] not in busy)),
        lacking=list_lacking(faults),
        caches=frozenset(row["caches"]),
    )


def _fits(placement: JobPlacement, room: RoomCheck, allotment: Allotment) -> bool:
    gpus = placement.gpus * placement.size if placement.gpus else 0
    if not allotment.allows(placement.project, gpus):
        return False
    need = placement.gpus, placement.cpu_slots, placement.memory_bytes
    if not room.reserve_job(placement.tasks, need):
        return False
    allotment.subtract_job(placement.project, gpus)
    return True


def _ask_candidates(
    queues: Sequence[str], quotas: Mapping[str, QuotaLeft], asked: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    asked = {**asked, "queues": queues}
    if not quotas:
        return "read_candidates", asked
    left = {
        "jobs_left": [q.jobs for q in quotas.values()],
        "gpus_left": [q.gpus for q in quotas.values()],
    }
    return "read_candidates_in_quota", {**asked, **left, "projects": list(quotas)}


def _ask_owned(
    queues: Sequence[str], shares: Mapping[str, Share], asked: Mapping[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """Return the query for the first jobs of projects that use less than their shares; None where
    no project does."""
    below, most = plan_owned(shares, asked["limit"])
    if not below:
        return []
    owned = {
        **asked,
        "queues": queues,
        "projects": list(below),
        "gpus": [gpus for gpus, _ in below.values()],
        "cpu_slots": [cpu_slots for _, cpu_slots in below.values()],
        "limit": most,
    }
    return [("read_candidates_in_share", owned)]


def _put_first(owned: Rows, queued: Rows) -> Rows:
    """Return all jobs: the jobs of `owned` first, and no job twice."""
    first = {row["job_id"] for row in owned}
    return [*owned, *(row for row in queued if row["job_id"] not in first)]


async def _read_blocked(tx: Tx, limit: int, now: datetime) -> list[Candidate]:
    """Return blocked members whose time has come, as candidates. The hosts of a job's other members
    are read once for each job."""
    rows = await tx.rows("read_blocked", limit=limit, now=now)
    if not rows:
        return []
    found = await tx.rows("read_member_hosts", ids=sorted({row["job_id"] for row in rows}))
    peers = {row["job_id"]: row["host_ids"] for row in found}
    candidates = []
    for row in rows:
        avoided = row.pop("avoid_hosts"), row.pop("first_host"), row.pop("earlier_hosts")
        hosts = members.list_avoided(*avoided, peers.get(row["job_id"], ()))
        candidates.append(msgspec.convert({**row, "avoid_hosts": hosts}, Candidate))
    return candidates
