"""Open a session for a user, and link it with the host that runs its task.

The user's WebSocket waits here. The order for its host is a row, because the host may sync with
another replica; the host dials with the ticket of that row.

- The user's right is checked anew every second, so a session ends within 5 s of the end of its
  token, and of the switches of its cluster and project.
- Nothing is kept here: each message goes on at the pace of its receiver.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shlex
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
from starlette.responses import Response

from holdfast.bounds import UNREADABLE
from holdfast.controller.http.callers import SPENT
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.sockets import Socket, SocketClosed
from holdfast.controller.http.splice import join
from holdfast.controller.http.sse import CHECK_SECONDS, LET_IN
from holdfast.controller.runtime.auth import make_new_id
from holdfast.core.ids import ID_PATTERN, TaskKey
from holdfast.core.records import JobRecord, JobTokenRecord
from holdfast.core.sessions.rights import WishToEnter, find_refusal
from holdfast.errors import (
    Conflict,
    Forbidden,
    HoldfastError,
    NotFound,
    TooLarge,
    Unauthorized,
    Unavailable,
    ValidationError,
)
from holdfast.store.postgres.jobs.sessions import Visitor
from holdfast.store.postgres.sign_ins import BrowserTicket
from holdfast.wire.sessions.frames import (
    DAMAGED,
    LEFT,
    LOST,
    PROTOCOL,
    REFUSAL,
    REFUSED,
    REPLACED,
    frame_json,
)
from holdfast.wire.sessions.messages import (
    MAX_ARGV_BYTES,
    Kind,
    SessionEnd,
    SessionOrder,
    SessionRecord,
    SessionRequest,
    SessionStatus,
)

log = logging.getLogger("holdfast.controller.sessions")

HOST_SECONDS = 15.0
"""How long a host may take to dial."""
_FIRST_SECONDS = 10.0
_NOTHING = Response(status_code=204)
_decode_request = msgspec.json.Decoder(SessionRequest).decode


async def open_session(call: ApiCall) -> Response:
    """Serve a user's end of a session until it ends."""
    socket = call.socket
    assert socket is not None
    job = await _find_job(call)
    await check_entry(call, job)
    _check_ticket(call, job_id=job.id)
    if PROTOCOL not in socket.offered:
        raise ValidationError(f"a session speaks the subprotocol {PROTOCOL}", field="subprotocol")
    await socket.accept(PROTOCOL)
    try:
        await _serve(call, socket, job)
    except SocketClosed:
        pass
    except HoldfastError as error:
        await _say(socket, error)
        await socket.close(REFUSED)
    return _NOTHING


async def _find_job(call: ApiCall) -> JobRecord:
    name = call.params["id"]
    if not ID_PATTERN.fullmatch(name):
        raise NotFound(f"there is no job {name[:64]!r}")
    return await call.store.jobs.get_job(name)


async def check_entry(call: ApiCall, job: JobRecord) -> None:
    """Raise Forbidden where the caller may not come into the job (REACH-1)."""
    refused = await find_entry_refusal(call, job)
    if refused is not None:
        code, sentence = refused
        raise Forbidden(sentence, code=code)


async def find_entry_refusal(call: ApiCall, job: JobRecord) -> tuple[str, str] | None:
    """Return why the caller may not come into the job, as a code and a sentence; None where the
    caller may."""
    settings, token = await call.controller.settings.recent(), call.caller
    entry = WishToEnter(
        user=call.user,
        may_submit=token.role in ("submit", "admin"),
        reach=token.reach,
        of_a_job=isinstance(token, JobTokenRecord),
        job_id=job.id,
        owner=job.owner,
        project=job.project,
        shared_process=bool(job.spec.executor),
        switched_on=settings.allow_sessions(job.project),
    )
    return find_refusal(entry)


def _check_ticket(call: ApiCall, *wanted: str | int, job_id: str = "") -> None:
    """Raise Forbidden where a browser's ticket is for another job, or for another kind of session
    or rank than those wanted (WEB-3)."""
    ticket: BrowserTicket | None = call.scope.get(SPENT)
    if ticket is None:
        return
    if ticket.job_id != (job_id or ticket.job_id) or (wanted and wanted != ("shell", ticket.rank)):
        raise Forbidden(
            f"this ticket opens a shell in rank {ticket.rank} of job {ticket.job_id}, and nothing else",
            code="no_ticket",
        )


async def _serve(call: ApiCall, socket: Socket, job: JobRecord) -> None:
    try:
        async with asyncio.timeout(_FIRST_SECONDS):
            asked = _decode_request(await socket.read())
    except TimeoutError:
        raise ValidationError("the first message of a session did not come in time") from None
    except UNREADABLE as error:
        raise ValidationError(f"the first message of a session cannot be read: {error}") from error
    _check_request(asked)
    controller = call.controller
    new = not asked.session
    known = None if new else await _find(call, job, asked)
    _check_ticket(call, *((asked.kind, asked.rank) if known is None else (known.kind, known.rank)))
    order = SessionOrder(
        id=uuid.uuid4().hex,
        session=make_new_id() if known is None else known.id,
        key=TaskKey(job.id, asked.rank, 0)  # the store knows the epoch
        if known is None
        else TaskKey(known.job_id, known.rank, known.epoch),
        ticket=secrets.token_urlsafe(32),
        kind=asked.kind if known is None else cast(Kind, known.kind),
        new=new,
        argv=asked.argv,
        tty=asked.tty,
        rows=asked.rows,
        cols=asked.cols,
        term=asked.term,
        port=asked.port,
        seen=asked.seen,
        watch=asked.watch,
    )
    with controller.meetings.wait(order.id) as meeting:
        if known is None:
            record = await _begin(call, job, asked, order)
        else:
            record = known
            await call.store.sessions.ask_link(record.host_id, order, controller.replica)
        controller.ask_host(record.host_id, sessions=True)
        try:
            async with asyncio.timeout(HOST_SECONDS):
                host_end = await meeting.host_end
        except TimeoutError:
            await call.store.sessions.drop_link(order.id)
            silent = f"host {record.host_id} did not open the session within {HOST_SECONDS:g} s"
            if new:
                await end_session(call, record, SessionEnd(reason=silent))
            raise Unavailable(f"{silent}; `holdfast hosts` shows whether it is alive") from None
        if new:
            controller.background.start(call.store.sessions.note_begun(record.id))
        how = await relay(socket, host_end, lambda: _stay(call, job, record.id))
        if record.kind == "attach" and how not in (LOST, DAMAGED):  # the terminal goes on
            await end_session(call, record, SessionEnd(reason="its user left"))
        if record.kind == "forward" and how in (
            LOST,
            DAMAGED,
        ):  # an agent that was killed reports no end
            await end_session(call, record, SessionEnd(reason="its connection broke"))


def _check_request(asked: SessionRequest) -> None:
    if sum(len(word) for word in asked.argv) > MAX_ARGV_BYTES:
        raise TooLarge(f"a session's command is at most {MAX_ARGV_BYTES} bytes", field="argv")
    if any("\x00" in word for word in asked.argv):
        raise ValidationError("a NUL character cannot be passed to a program", field="argv")
    if asked.kind == "forward" and not asked.port:
        raise ValidationError("a forward names a port from 1 to 65535", field="port")


async def _begin(
    call: ApiCall, job: JobRecord, asked: SessionRequest, order: SessionOrder
) -> SessionRecord:
    client = call.scope.get("client")
    visitor = Visitor(
        user=call.user,
        token_id=call.caller.id,
        token_name=call.caller.name,
        address=str(client[0]) if client else "",
    )
    command = shlex.join(asked.argv) if asked.kind != "forward" else f"port {asked.port}"
    record = await call.store.sessions.open_session(
        job, asked, command, visitor, order, call.controller.replica
    )
    call.controller.poke("events")
    return record


async def _find(call: ApiCall, job: JobRecord, asked: SessionRequest) -> SessionRecord:
    """Return the existing session to which a user asks to be linked: the user's own, or one to read
    along with."""
    record = await call.store.sessions.get_session(asked.session)
    if record.job_id != job.id:
        raise NotFound(f"job {job.id} has no session {asked.session}")
    if "forward" in (record.kind, asked.kind):
        raise Conflict("each forwarded connection is a session of its own; open a new one")
    if record.state == "ended" and record.kind != "attach":
        code = "" if record.exit_code is None else f" with exit code {record.exit_code}"
        raise Conflict(
            f"session {record.id} has ended{code}: {record.reason or 'its command is over'}",
            code="session_ended",
        )
    if not asked.watch and record.owner != call.user:
        raise Forbidden(
            f"session {record.id} belongs to {record.owner}; `holdfast attach --watch` reads along"
        )
    return record


async def end_session(call: ApiCall, record: SessionRecord, end: SessionEnd) -> None:
    """Record the end of a session, and have its host end it."""
    if await call.store.sessions.end_session(record.id, end):
        call.controller.poke("events")
        call.controller.ask_host(record.host_id, sessions=True)


async def _stay(call: ApiCall, job: JobRecord, session_id: str) -> HoldfastError:
    """Wait until the user may not stay in the session any more; return the refusal."""
    let_in: Callable[[], Awaitable[None]] = call.scope[LET_IN]
    while True:
        await asyncio.sleep(CHECK_SECONDS)
        try:
            await let_in()
            await check_entry(call, job)
            record = await call.store.sessions.get_session(session_id)
            if record.state == "ended" and record.exit_code is None:
                return Conflict(f"session {session_id} is over: {record.reason}")
        except (Unauthorized, Forbidden) as error:
            return error
        except HoldfastError:
            pass  # the store cannot be asked now


async def relay(user: Socket, host: Socket, stay: Callable[[], Awaitable[HoldfastError]]) -> int:
    """Pass messages on both ways until one end is gone, or the user may not stay. Return how the
    link ended: LEFT, LOST, REPLACED, REFUSED or DAMAGED."""
    join(user.scope, host.scope)  # from here on the tasks below see the ends alone
    refused = asyncio.ensure_future(stay())
    down = asyncio.ensure_future(_pass_on(host, user))
    up = asyncio.ensure_future(_pass_on(user, host))
    tasks = (refused, down, up)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if _has_ended(refused):
            await _say(user, refused.result())  # while the host can still end what it began to say
            await host.close(REFUSED)
            await user.close(REFUSED)
            return REFUSED
        if _has_ended(up):
            code = up.result() if up.result() in (LEFT, DAMAGED) else LOST
            await host.close(code)
        else:
            code = down.result() if _has_ended(down) else LOST
            code = code if code in (LEFT, REPLACED, DAMAGED) else LOST
            await user.close(code)
            await host.close(LOST)
        return code
    finally:
        for task in tasks:
            task.cancel()


def _has_ended(task: asyncio.Future[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _pass_on(source: Socket, sink: Socket) -> int:
    """Pass messages from one end to the other; return the code with which the first was closed, or
    `LOST`."""
    try:
        while True:
            data = await source.read()
            try:
                await sink.write(data)
            except SocketClosed:
                return await _hear_out(source)
    except SocketClosed as closed:
        return closed.code


async def _hear_out(source: Socket) -> int:
    """Read and drop the messages of an end whose other end is gone, and return LOST. The task that
    serves that other end says how the link ended."""
    with contextlib.suppress(SocketClosed):
        while True:
            await source.read()
    return LOST


async def _say(socket: Socket, error: HoldfastError) -> None:
    status = SessionStatus(code=error.code, detail=error.message, status=error.status)
    with contextlib.suppress(SocketClosed):
        await socket.write(frame_json(REFUSAL, status))
