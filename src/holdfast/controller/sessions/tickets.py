"""Let a browser come into a task: its right, and the ticket with which it opens a shell (WEB-3)."""

from __future__ import annotations

import secrets

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import hash_secret
from holdfast.controller.sessions.open import check_entry, find_entry_refusal
from holdfast.errors import ValidationError
from holdfast.store.postgres.sign_ins import BrowserTicket
from holdfast.web.browsers import TICKET_SECONDS, read_cookie
from holdfast.wire.sessions.messages import SessionRight, SessionTicket, TicketRequest


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
