"""Serve the plain routes of sessions: users ask for their right, list sessions and end them; a browser
gets the ticket with which it opens a shell (WEB-3)."""

from __future__ import annotations

import secrets

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import hash_secret
from holdfast.controller.sessions.open import check_entry, end_session, find_entry_refusal
from holdfast.errors import Forbidden, ValidationError
from holdfast.store.postgres.sign_ins import BrowserTicket
from holdfast.web.browsers import TICKET_SECONDS, read_cookie
from holdfast.wire.operations.work.sessions import SessionsQuery
from holdfast.wire.sessions.messages import SessionEnd, SessionRight, SessionTicket, TicketRequest

_NOTHING = Response(status_code=204)


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


async def show_right(call: ApiCall) -> Response:
    """Tell whether the caller may come into a job's tasks."""
    job = await call.store.jobs.get_job(call.params["id"])
    refused = await find_entry_refusal(call, job)
    if refused is None and (host := await call.store.sessions.find_closed_host(job.id)) is not None:
        refused = (
            "sessions_off",
            f"sessions are switched off on host {host}, in its agent's configuration",
        )
    code, reason = refused or ("", "")
    return answer_json(SessionRight(allowed=refused is None, code=code, reason=reason))


async def create_ticket(call: ApiCall) -> Response:
    """Give the ticket with which the browser that asks opens one shell. This answer alone shows it."""
    asked = await call.body(TicketRequest, default=TicketRequest())
    if call.header("authorization") is not None:
        raise ValidationError(
            "a ticket is for a browser that is signed in; a call with a token opens "
            "`/v1/jobs/{id}/sessions/open` with that token",
            field="authorization",
        )
    signed_in = await call.controller.guard.find_sign_in(read_cookie(call.scope) or "")
    job = await call.store.jobs.get_job(call.params["id"])
    await check_entry(call, job)
    secret = secrets.token_urlsafe(32)
    ticket = BrowserTicket(sign_in_id=signed_in.id, job_id=job.id, rank=asked.rank)
    until = await call.store.sign_ins.create_ticket(hash_secret(secret), ticket, TICKET_SECONDS)
    return answer_json(SessionTicket(ticket=secret, expires_at=until), 201)
