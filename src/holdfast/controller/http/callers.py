"""The caller of a route for users: by a token, by a browser's sign-in, or from a page inside this
process."""

import hmac

from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.runtime.auth import hash_secret
from holdfast.core.records import TokenRecord
from holdfast.errors import Unauthorized
from holdfast.web.browsers import PROOF_HEADER, check_origin, find_header, read_cookie
from holdfast.web.reader import CALLER


async def find_caller(call: ApiCall) -> TokenRecord:
    """Return the token by which a call is made.

    Raises:
        Unauthorized: the call names no token, or a browser's cookie without its proof (WEB-2).
        Forbidden: a page of another origin sent the browser's call.
    """
    known: TokenRecord | None = call.scope.get(CALLER)
    if known is not None:
        return known  # nothing from outside sets a key of the scope
    authorization = call.header("authorization")
    secret = read_cookie(call.scope) if authorization is None else None
    if secret is None:
        return await call.controller.guard.find_user(authorization)
    check_origin(call.scope, call.controller.origins)
    signed_in = await call.controller.guard.find_sign_in(secret)
    proof = find_header(call.scope, PROOF_HEADER) or ""
    if not hmac.compare_digest(hash_secret(proof), signed_in.proof_hash):
        raise Unauthorized(
            "this call came with a browser's cookie and without the proof of the dashboard's own "
            "pages; send `Authorization: Bearer TOKEN`",
            code="no_proof",
        )
    return signed_in.token
