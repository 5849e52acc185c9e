"""Browsers that are signed in, as the dashboard asks for them (`web.app.SignIns`)."""

import contextlib
import hmac
import secrets

from holdfast.controller.runtime.auth import Guard, hash_secret, make_new_id
from holdfast.core.records import TokenRecord
from holdfast.errors import NotFound, Unauthorized
from holdfast.store.postgres.sign_ins import SignedIn
from holdfast.store.postgres.store import PostgresStore
from holdfast.web.app import NewSignIn
from holdfast.web.browsers import MAX_SECRET_CHARS, SIGN_IN_SECONDS


class StoredSignIns:
    """Sign-ins in the store, remembered by the guard for a moment."""

    def __init__(self, store: PostgresStore, guard: Guard) -> None:
        self._store, self._guard = store, guard

    async def find(self, secret: str) -> TokenRecord:
        """Return the token by which a browser acts. Raises Unauthorized."""
        return (await self._find(secret)).token

    async def check(self, secret: str, proof: str) -> TokenRecord:
        """As `find`, of a browser that shows its proof too (WEB-2)."""
        signed_in = await self._find(secret)
        if not hmac.compare_digest(hash_secret(proof[:MAX_SECRET_CHARS]), signed_in.proof_hash):
            raise Unauthorized(
                "the request came without the proof of the dashboard's own pages", code="no_proof"
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
