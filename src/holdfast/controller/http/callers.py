"""The caller of a route for users: by a token, by a browser's sign-in, or from a page inside this
process; and the browsers that are signed in, as the dashboard asks for them."""

import contextlib
import hmac
import secrets

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.sockets import Socket
from holdfast.controller.runtime.auth import Guard, hash_secret, make_new_id
from holdfast.core.records import TokenRecord
from holdfast.errors import NotFound, Unauthorized
from holdfast.store.postgres.sign_ins import BrowserTicket, SignedIn
from holdfast.store.postgres.store import PostgresStore
from holdfast.web.app import NewSignIn
from holdfast.web.browsers import (
    MAX_SECRET_CHARS,
    PROOF_HEADER,
    SIGN_IN_SECONDS,
    check_origin,
    find_header,
    find_ticket,
    read_cookie,
)
from holdfast.web.reader import CALLER

SPENT = "holdfast.ticket"
"""The key under which the scope of a browser's WebSocket holds the ticket that it spent."""


async def find_caller(call: ApiCall) -> TokenRecord:
    """Return the token by which a call is made.

    Raises:
        Unauthorized: the call names no token, or a browser's cookie without its proof or, for a
            WebSocket, without a ticket (WEB-2, WEB-3).
        Forbidden: a page of another origin sent the browser's call.
    """
    known: TokenRecord | None = call.scope.get(CALLER)
    if known is not None:
        return known  # nothing from outside sets a key of the scope
    authorization = call.header("authorization")
    secret = read_cookie(call.scope) if authorization is None else None
    if secret is None:
        return await call.controller.guard.find_user(authorization)
    if call.socket is not None:
        return await _find_ticket_holder(call, call.socket, secret)
    check_origin(call.scope, call.controller.origins)
    proof = find_header(call.scope, PROOF_HEADER) or ""
    return await StoredSignIns(call.store, call.controller.guard).check(secret, proof)


async def _find_ticket_holder(call: ApiCall, socket: Socket, secret: str) -> TokenRecord:
    """Return the token by which a browser opens a WebSocket: the first time spend its ticket, and
    later, while the WebSocket lasts, look whether the sign-in is in force (WEB-3)."""
    check_origin(call.scope, call.controller.origins, named=True)
    signed_in = await call.controller.guard.find_sign_in(secret)
    spent: BrowserTicket | None = call.scope.get(SPENT)
    if spent is None:
        ticket = hash_secret(find_ticket(socket.offered))
        spent = await call.store.sign_ins.spend_ticket(ticket)
    if spent is None or spent.sign_in_id != signed_in.id:
        raise Unauthorized(
            "a browser opens a WebSocket with a ticket of its own that was not used yet; "
            "`POST /v1/jobs/{id}/sessions/tickets` gives one",
            code="no_ticket",
        )
    call.scope[SPENT] = spent
    return signed_in.token


class StoredSignIns:
    """Sign-ins in the store, remembered by the guard for a moment."""

    def __init__(self, store: PostgresStore, guard: Guard) -> None:
        self._store, self._guard = store, guard

    async def find(self, secret: str) -> TokenRecord:
        """Return the token by which a browser acts. Raises Unauthorized."""
        return (await self._find(secret)).token

    async def check(self, secret: str, proof: str) -> TokenRecord:
        """Return the token by which a browser acts, as `find` does, for a request that also shows
        the browser's proof (WEB-2)."""
        signed_in = await self._find(secret)
        if not hmac.compare_digest(hash_secret(proof[:MAX_SECRET_CHARS]), signed_in.proof_hash):
            raise Unauthorized(
                "this call came with a browser's cookie and without the proof of the dashboard's "
                "own pages; send `Authorization: Bearer TOKEN`",
                code="no_proof",
            )
        return signed_in.token

    async def sign_in(self, link: str, browser: str, address: str) -> NewSignIn:
        """Spend a link. Raises Unauthorized where the link is over."""
        made = NewSignIn(secret=secrets.token_urlsafe(32), proof=secrets.token_urlsafe(32))
        await self._store.sign_ins.spend_link(
            hash_secret(link[:MAX_SECRET_CHARS]),
            make_new_id(),
            hash_secret(made.secret),
            hash_secret(made.proof),
            SIGN_IN_SECONDS,
            browser=browser,
            address=address,
        )
        return made

    async def sign_out(self, secret: str) -> None:
        """End a browser's sign-in. The sign-in may be over already."""
        signed_in = await self._find(secret)
        with contextlib.suppress(NotFound):
            await self._store.sign_ins.end_sign_in(signed_in.id)
        self._guard.forget()

    async def _find(self, secret: str) -> SignedIn:
        if not secret:
            raise Unauthorized("this browser is not signed in", code="signed_out")
        return await self._guard.find_sign_in(secret)
