"""Sessions in PostgreSQL."""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.records import JobRecord
from holdfast.core.sessions.rights import CLOSED_LABEL
from holdfast.core.sessions.transitions import SESSION, SessionEvent
from holdfast.core.states import TaskState
from holdfast.core.transitions import sources
from holdfast.errors import Conflict, NotFound
from holdfast.moves.rows import NewEvent, clean_text
from holdfast.moves.values import StoreValue
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.moves import write_events
from holdfast.wire.sessions.messages import SessionEnd, SessionOrder, SessionRecord, SessionRequest

_SHOWN_CHARS = 200
BEGIN_FROM = [str(state) for state in sources(SESSION, SessionEvent.BEGIN)]
END_FROM = [str(state) for state in sources(SESSION, SessionEvent.END)]


class Visitor(StoreValue, frozen=True, kw_only=True):
    """A user that comes into a task: by which token, and from where."""

    user: str
    token_id: str
    token_name: str
    address: str


class PostgresSessions(OnSession):
    """Sessions and their links."""

    @reads
    async def find_closed_host(self, tx: Tx, job_id: str) -> str | None:
        """Return the name of a host of a job whose ranks all run on hosts that take no sessions;
        None for any other job."""
        label, value = CLOSED_LABEL
        row = await tx.one("find_closed_host", job_id=job_id, label=label, value=value)
        return None if row is None else row["host"]

    @transacts
    async def open_session(
        self,
        tx: Tx,
        job: JobRecord,
        asked: SessionRequest,
        command: str,
        visitor: Visitor,
        order: SessionOrder,
        replica: str,
        *,
        now: Now = None,
    ) -> SessionRecord:
        """Record a session in a running task, with its event (`session_started`), and order its
        host to dial its first link, all in one transaction, because a person waits. Raises Conflict
        where the task does not run, and NotFound for a rank that the job does not have."""
        session_id = order.session
        task = await tx.one("find_session_task", job_id=job.id, rank=asked.rank, now=now)
        _check_task(task, job, asked.rank)
        assert task is not None
        command = clean_text(command)[:4096]
        place = {"rank": asked.rank, "epoch": task["epoch"], "attempt": task["attempt"]}
        named = {
            "id": session_id,
            "job_id": job.id,
            "host_id": task["host_id"],
            "kind": asked.kind,
            "command": command,
            "owner": visitor.user,
            "token_name": visitor.token_name,
            "from_address": visitor.address,
        }
        more = {"project": job.project, "token_id": visitor.token_id, "tty": asked.tty}
        await tx.run("insert_session", **named, **place, **more, at=task["now"])
        event = NewEvent(
            kind="session_started",
            job_id=job.id,
            **place,
            host_id=task["host_id"],
            queue=task["queue"],
            project=job.project,
            message=f"{visitor.user} came in from {visitor.address or 'an unknown address'}: "
            f"{asked.kind} {command[:_SHOWN_CHARS]}".rstrip(),
            data={"session": session_id, "user": visitor.user, "from": visitor.address}
            | {"kind": asked.kind, "command": command, "token": visitor.token_name},
        )
        await write_events(tx, [event], task["now"])
        key = TaskKey(job.id, asked.rank, task["epoch"])
        await _ask(tx, task["host_id"], msgspec.structs.replace(order, key=key), replica, now)
        return SessionRecord(
            **named, rank=asked.rank, epoch=task["epoch"], state="opening", created_at=task["now"]
        )

    async def ask_link(
        self, host_id: str, order: SessionOrder, replica: str, *, now: Now = None
    ) -> None:
        """Order a host to dial a link of a session; the ticket of the order is good for one
        dial."""
        await self.session.single(lambda tx: _ask(tx, host_id, order, replica, now))

    async def tell_links(self, host_id: str) -> list[SessionOrder]:
        """Return the links that a host has still to dial. A link is returned again after two
        seconds, in case the answer was lost."""
        rows = await self.session.rows("tell_session_links", host_id=host_id)
        return [msgspec.convert(row["order"], SessionOrder) for row in rows]

    @reads
    async def find_replica(self, tx: Tx, host_id: str, link_id: str, ticket: str) -> str | None:
        """Return the address of the replica where a link's user waits, without spending the ticket;
        None for a ticket that is not good."""
        found: str | None = await tx.value(
            "find_session_replica", **_name(host_id, link_id, ticket)
        )
        return found

    @reads
    async def take_link(
        self, tx: Tx, host_id: str, link_id: str, ticket: str, replica: str
    ) -> str | None:
        """Spend a ticket whose user waits at `replica`: return its session; None for one that is
        not good, or names another replica."""
        named = _name(host_id, link_id, ticket)
        found: str | None = await tx.value("take_session_link", **named, replica=replica)
        return found

    async def read_replica_key(self) -> str:
        """Return the key by which the replicas of this cluster know each other."""
        found: str = await self.session.single(lambda tx: tx.value("read_replica_key"))
        return found

    async def drop_link(self, link_id: str) -> None:
        """Withdraw the order to dial a link."""
        await self.session.single(lambda tx: tx.run("drop_session_link", id=link_id))

    async def note_begun(self, session_id: str) -> None:
        """Note that a session has its link and has begun."""
        await self.session.single(
            lambda tx: tx.run("note_session_begun", id=session_id, begin_from=BEGIN_FROM)
        )

    @transacts
    async def end_session(
        self,
        tx: Tx,
        session_id: str,
        end: SessionEnd,
        *,
        host_id: str | None = None,
        now: Now = None,
    ) -> bool:
        """Record the end of a session, with its event (`session_ended`). Return False where it was
        recorded before. host_id: the host that reports it, which must be the session's; without
        one, its host is ordered to end it."""
        if host_id is not None:
            stop = _name_stop(clean_text(session_id))
            await tx.run("drop_session_stop", id=stop, host_id=host_id)
        row = await _end(tx, session_id, end, host_id, now)
        if row is not None and host_id is None:
            await _order_stop(tx, row, now)
        return row is not None

    @transacts
    async def end_lost_sessions(self, tx: Tx, *, now: Now = None) -> int:
        """Record the ends of sessions whose attempts are over; return the number of these
        sessions."""
        found = await tx.rows("find_lost_sessions", now=now)
        over = SessionEnd(reason="its attempt is over")
        ended = [await _end(tx, row["id"], over, None, now) for row in found]
        return sum(row is not None for row in ended)

    @transacts
    async def end_barred_sessions(
        self, tx: Tx, closed: Sequence[str], *, all_closed: bool = False, now: Now = None
    ) -> list[str]:
        """End the sessions whose token is over, and those in the projects of `closed`; return their
        hosts, which are ordered to end them."""
        given = {"closed": list(closed), "all_closed": all_closed}
        hosts = []
        for found in await tx.rows("find_barred_sessions", **given, now=now):
            row = await _end(tx, found["id"], SessionEnd(reason=found["reason"]), None, now)
            if row is not None:
                await _order_stop(tx, row, now)
                hosts.append(row["host_id"])
        return hosts

    @reads
    async def get_session(self, tx: Tx, session_id: str) -> SessionRecord:
        """Return a session. Raises NotFound."""
        row = await tx.one("read_session", id=clean_text(session_id))
        if row is None:
            raise NotFound(
                f"there is no session {session_id[:64]!r}; `holdfast sessions` lists those that run"
            )
        return msgspec.convert(row, SessionRecord)

    async def list_sessions(
        self, job_id: str | None = None, *, also_over: bool = False, limit: int = 500
    ) -> list[SessionRecord]:
        """Return sessions, the newest first."""
        given = {"job_id": job_id, "also_over": also_over, "limit": limit}
        rows = await self.session.rows("list_sessions", **given)
        return [msgspec.convert(row, SessionRecord) for row in rows]


async def _ask(tx: Tx, host_id: str, order: SessionOrder, replica: str, now: Now) -> int:
    given = {
        "id": order.id,
        "session_id": order.session,
        "host_id": host_id,
        "order": to_json(order),
        "ticket_hash": hash_ticket(order.ticket) if order.ticket else b"",
        "replica": replica,
    }
    return await tx.run("insert_session_link", **given, now=now)


async def _order_stop(tx: Tx, row: dict[str, Any], now: Now) -> None:
    """Order a session's host to end it, which may have no link now."""
    if row["kind"] == "attach":  # the terminal is the job's
        return
    order = SessionOrder(
        id=_name_stop(row["id"]),
        session=row["id"],
        key=TaskKey(row["job_id"], row["rank"], row["epoch"]),
        ticket="",
        stop=True,
    )
    await _ask(tx, row["host_id"], order, "", now)


def _name_stop(session_id: str) -> str:
    return f"stop {session_id}"


async def _end(
    tx: Tx, session_id: str, end: SessionEnd, host_id: str | None, now: Now
) -> dict[str, Any] | None:
    code = end.exit_code if end.signal is None else 128 + end.signal
    given = {"id": clean_text(session_id), "exit_code": code, "reason": clean_text(end.reason)}
    row = await tx.one("end_session", **given, host_id=host_id, end_from=END_FROM, now=now)
    if row is None:
        return None
    how = f"exit code {code}" if code is not None else end.reason or "it ended"
    event = NewEvent(
        kind="session_ended",
        job_id=row["job_id"],
        attempt=row["attempt"],
        epoch=row["epoch"],
        rank=row["rank"],
        host_id=row["host_id"],
        project=row["project"],
        message=f"the session of {row['owner']} ended after {row['seconds']:.0f} s: {how}",
        data={"session": session_id, "user": row["owner"], "from": row["from_address"]}
        | {"kind": row["kind"], "command": row["command"], "exit_code": code}
        | {"seconds": round(row["seconds"], 3), "reason": end.reason},
    )
    await write_events(tx, [event], row["ended_at"])
    return row


def _name(host_id: str, link_id: str, ticket: str) -> dict[str, Any]:
    return {"id": clean_text(link_id), "host_id": host_id, "ticket_hash": hash_ticket(ticket)}


def hash_ticket(ticket: str) -> bytes:
    """Return the hash under which a ticket is on record."""
    return hashlib.sha256(ticket.encode("utf-8", "surrogateescape")).digest()


def _check_task(task: dict[str, Any] | None, job: JobRecord, rank: int) -> None:
    """Raise Conflict or NotFound where no session can begin in the task."""
    if task is not None and task["state"] == TaskState.RUNNING:
        return
    if rank >= job.tasks:
        many = "task" if job.tasks == 1 else "tasks"
        raise NotFound(
            f"job {job.id} has {job.tasks} {many}, so there is no rank {rank}; ranks count from 0"
        )
    if job.state.terminal:
        raise Conflict(
            f"job {job.id} has ended ({job.state}); a session needs a task that runs. "
            f"`holdfast logs {job.id}` shows what it printed",
            code="job_ended",
        )
    where = f"rank {rank} of job {job.id}" if job.tasks > 1 else f"job {job.id}"
    state = task["state"] if task is not None else job.state
    raise Conflict(
        f"{where} does not run now ({state}); `holdfast why {job.id}` says what it waits for",
        code="not_running",
    )
