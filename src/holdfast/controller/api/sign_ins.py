"""The routes of browsers that are signed in."""

import secrets

from starlette.responses import Response

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.pages import answer_page
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import REVOKED, hash_secret
from holdfast.core.ids import ID_PATTERN
from holdfast.core.records import JobTokenRecord
from holdfast.errors import Forbidden, NotFound
from holdfast.web.browsers import LINK_SECONDS
from holdfast.wire.api import SignInLink
from holdfast.wire.operations.operation import Role


async def create_link(call: ApiCall) -> Response:
    """Make a link that signs one browser in, as the caller's token. This answer alone shows it."""
    if isinstance(call.caller, JobTokenRecord):
        raise Forbidden("the token of a task signs no browser in")
    secret = secrets.token_urlsafe(32)
    until = await call.store.sign_ins.create_link(hash_secret(secret), call.caller.id, LINK_SECONDS)
    # The secret is a fragment, which a browser sends to no server and writes in no log.
    urls = [f"{origin}/sign-in#{secret}" for origin in call.controller.origins]
    return answer_json(SignInLink(url=urls[0], urls=urls, expires_at=until), 201)


async def list_sign_ins(call: ApiCall) -> Response:
    """List the browsers that are signed in: the caller's own, and for an admin all."""
    return answer_page(await call.store.sign_ins.list_sign_ins(_bound_user(call)))


async def end_sign_in(call: ApiCall) -> Response:
    """End a sign-in within 5 s, with its streams."""
    sign_in_id = call.params["id"]
    if not ID_PATTERN.fullmatch(sign_in_id):
        raise NotFound(f"there is no sign-in {sign_in_id[:64]!r}")
    await call.store.sign_ins.end_sign_in(sign_in_id, _bound_user(call))
    call.controller.poke(REVOKED)
    return Response(status_code=204)


def _bound_user(call: ApiCall) -> str | None:
    return None if call.caller.role == Role.ADMIN.name.lower() else call.user
