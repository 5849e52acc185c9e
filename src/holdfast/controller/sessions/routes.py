"""Serve the routes of sessions: hosts dial and report ends, users list sessions and end them."""

from __future__ import annotations

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.sessions.open import end_session
from holdfast.controller.sessions.relay import RELAYED_HOST, TICKET, RelayedDial, pass_on_dial
from holdfast.errors import Forbidden, NotFound
from holdfast.wire.operations.work.sessions import SessionsQuery
from holdfast.wire.sessions.frames import PROTOCOL
from holdfast.wire.sessions.messages import SessionEnd

_NOTHING = Response(status_code=204)
_NOT_GOOD = "this ticket is not good: it was used, or its user waits no more"


async def dial_session(call: ApiCall) -> Response:
    """Serve a host's end of a link: spend its ticket, and join it with the user's end."""
    socket, host = call.socket, call.host
    assert socket is not None
    assert host is not None
    ticket, link_id = call.header(TICKET) or "", call.params["id"]
    if await _take(call, host.id):
        return await _join(call)
    replica = await call.store.sessions.find_replica(host.id, link_id, ticket)
    if replica is None or replica == call.controller.replica:
        raise NotFound(_NOT_GOOD)
    await pass_on_dial(call.controller, socket, replica, RelayedDial(link_id, host.id, ticket))
    return _NOTHING


async def take_relayed_dial(call: ApiCall) -> Response:
    """Serve a host's end of a link that another replica relays: as `dial_session`."""
    if not await _take(call, call.header(RELAYED_HOST) or ""):
        raise NotFound(_NOT_GOOD)
    return await _join(call)


async def _take(call: ApiCall, host_id: str) -> bool:
    """Spend a ticket, if its user waits here."""
    ticket, here = call.header(TICKET) or "", call.controller.replica
    took = await call.store.sessions.take_link(host_id, call.params["id"], ticket, here)
    return took is not None


async def _join(call: ApiCall) -> Response:
    """Join both ends of a link whose ticket is spent, until they are gone."""
    socket = call.socket
    assert socket is not None
    meeting = call.controller.meetings.find(call.params["id"])
    if meeting is None:
        raise NotFound(
            f"the user of this link does not wait at {call.controller.replica}; where several "
            "servers share a database, each has an address of its own (`--advertise`)"
        )
    await socket.accept(PROTOCOL)
    if meeting.host_end.done():
        return _NOTHING
    meeting.host_end.set_result(socket)
    await meeting.over.wait()
    return _NOTHING


async def report_end(call: ApiCall) -> Response:
    """Record the end of a session, as its host reports it."""
    assert call.host is not None
    end = await call.body(SessionEnd)
    if await call.store.sessions.end_session(call.params["id"], end, host_id=call.host.id):
        call.controller.poke("events")
    return _NOTHING


async def list_sessions(call: ApiCall) -> Response:
    """List the sessions of the cluster."""
    also_over = bool(call.query(SessionsQuery).all)
    return answer_page(await call.store.sessions.list_sessions(also_over=also_over))


async def list_sessions_of_job(call: ApiCall) -> Response:
    """List the sessions in a job's tasks."""
    job = await call.store.jobs.get_job(call.params["id"])
    also_over = bool(call.query(SessionsQuery).all)
    return answer_page(await call.store.sessions.list_sessions(job.id, also_over=also_over))


async def stop_session(call: ApiCall) -> Response:
    """End a session. The session's user, the owner of its job, and admins may do so."""
    record = await call.store.sessions.get_session(call.params["id"])
    job = await call.store.jobs.get_job(record.job_id)
    if call.caller.role != "admin" and call.user not in (record.owner, job.owner):
        raise Forbidden(f"session {record.id} of {record.owner} is in a job of {job.owner}")
    await end_session(call, record, SessionEnd(reason=f"{call.user} ended it"))
    return _NOTHING
