"""The routes of tokens."""

from datetime import timedelta

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import REVOKED, hash_secret, make_new_id, make_secret
from holdfast.core.ids import ID_PATTERN
from holdfast.core.records import shared_fields
from holdfast.errors import NotFound
from holdfast.wire.api import TokenCreated, TokenRequest

JOIN_SECONDS = 3600.0


async def list_tokens(call: ApiCall) -> Response:
    """List every token, without its secret."""
    return answer_page(await call.store.tokens.list_tokens())


async def create_token(call: ApiCall) -> Response:
    """Make a token. This answer alone shows its secret."""
    request = await call.body(TokenRequest)
    store = call.store
    lifetime = request.expires_seconds
    if lifetime is None and request.role == "join":
        lifetime = JOIN_SECONDS
    expires_at = None if lifetime is None else await store.now() + timedelta(seconds=lifetime)
    secret = make_secret("j" if request.role == "join" else "t")
    token = await store.tokens.create_token(
        make_new_id(),
        request.role,
        request.name,
        hash_secret(secret),
        expires_at,
        user=request.user or request.name or call.user,
        reach=request.reach,
    )
    return answer_json(TokenCreated(**shared_fields(token, TokenCreated), secret=secret), 201)


async def revoke_token(call: ApiCall) -> Response:
    """Revoke a token: at once on this replica and on those that receive the hint, within 5 s on the
    others. Open streams of the token end then."""
    token_id = call.params["id"]
    if not ID_PATTERN.fullmatch(token_id):
        raise NotFound(f"there is no token {token_id[:64]!r}; `holdfast token list` shows them")
    await call.store.tokens.revoke_token(token_id)
    call.controller.poke(REVOKED)
    return Response(status_code=204)


async def who_am_i(call: ApiCall) -> Response:
    """Return the caller's token."""
    return answer_json(call.caller)
