"""Sign-ins of browsers in PostgreSQL, the links that make them, and the tickets of their
WebSockets."""

from datetime import datetime

import msgspec

from holdfast.core.records import TokenRecord
from holdfast.errors import NotFound, Unauthorized
from holdfast.moves.events import sign_in_event
from holdfast.moves.values import StoreValue
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.moves import write_events
from holdfast.wire.api import SignInView


class SignedIn(StoreValue, frozen=True, kw_only=True):
    """A browser that is signed in: the token that it acts by, and the hash of the proof with which
    it changes things."""

    id: str
    proof_hash: bytes
    expires_at: datetime
    token: TokenRecord


class BrowserTicket(StoreValue, frozen=True, kw_only=True):
    """A ticket that was spent: the sign-in that asked for it, and the task that it leads to."""

    sign_in_id: str
    job_id: str
    rank: int


class PostgresSignIns(OnSession):
    """Browsers that act for the user of a token."""

    @transacts
    async def create_link(
        self, tx: Tx, secret_hash: bytes, token_id: str, seconds: float, *, now: Now = None
    ) -> datetime:
        """Write a link that signs one browser in within `seconds`; return its end."""
        await tx.run("prune_sign_in_links", now=now)
        row = await tx.one(
            "insert_sign_in_link",
            secret_hash=secret_hash,
            token_id=token_id,
            seconds=seconds,
            now=now,
        )
        assert row is not None
        until: datetime = row["expires_at"]
        return until

    @transacts
    async def spend_link(
        self,
        tx: Tx,
        link_hash: bytes,
        sign_in_id: str,
        secret_hash: bytes,
        proof_hash: bytes,
        seconds: float,
        *,
        browser: str,
        address: str,
        now: Now = None,
    ) -> None:
        """Spend a link, and sign a browser in for `seconds`. Raises Unauthorized where the link was
        used, has expired, or its token is over; nothing is written then."""
        await tx.run("prune_sign_ins", now=now)
        link = await tx.one("spend_sign_in_link", secret_hash=link_hash, now=now)
        if link is None or not link["good"]:
            raise Unauthorized(
                "this link was used or is over; `holdfast dashboard` prints another",
                code="link_over",
            )
        made = await tx.one(
            "insert_sign_in",
            id=sign_in_id,
            token_id=link["token_id"],
            secret_hash=secret_hash,
            proof_hash=proof_hash,
            browser=browser,
            address=address,
            seconds=seconds,
            now=now,
        )
        if made is None:
            raise Unauthorized(
                "the token that made this link was revoked, so that it signs no browser in",
                code="link_over",
            )
        text = f"a browser at {address or 'an unknown address'} signed in as {made['user']}"
        await write_events(tx, [sign_in_event("made", sign_in_id, text)], await tx.now(now))

    @reads
    async def find_sign_in(self, tx: Tx, secret_hash: bytes, *, now: Now = None) -> SignedIn | None:
        """Return the sign-in of a cookie; None where it is over or unknown."""
        row = await tx.one("find_sign_in", secret_hash=secret_hash, now=now)
        if row is None:
            return None
        values = dict(row)
        named = {"id": values.pop("sign_in"), "proof_hash": bytes(values.pop("proof_hash"))}
        over_at = values.pop("over_at")
        return SignedIn(**named, expires_at=over_at, token=msgspec.convert(values, TokenRecord))

    @reads
    async def list_sign_ins(
        self, tx: Tx, user: str | None = None, *, now: Now = None
    ) -> list[SignInView]:
        """Return the sign-ins in force, oldest first: those of one user, or all."""
        return await tx.list_of(SignInView, "list_sign_ins", user=user, now=now)

    @transacts
    async def end_sign_in(
        self, tx: Tx, sign_in_id: str, user: str | None = None, *, now: Now = None
    ) -> None:
        """End a sign-in; with `user`, only one of that user. Raises NotFound."""
        row = await tx.one("end_sign_in", id=sign_in_id, user=user, now=now)
        if row is None:
            raise NotFound(
                f"there is no sign-in {sign_in_id[:64]!r}; `holdfast dashboard --list` shows them"
            )
        text = f"the sign-in of {row['user']} was ended"
        await write_events(tx, [sign_in_event("ended", sign_in_id, text)], await tx.now(now))

    @transacts
    async def create_ticket(
        self, tx: Tx, secret_hash: bytes, ticket: BrowserTicket, seconds: float, *, now: Now = None
    ) -> datetime:
        """Write a ticket that opens one WebSocket within `seconds`; return its end."""
        await tx.run("prune_browser_tickets", now=now)
        row = await tx.one(
            "insert_browser_ticket",
            secret_hash=secret_hash,
            sign_in_id=ticket.sign_in_id,
            job_id=ticket.job_id,
            rank=ticket.rank,
            seconds=seconds,
            now=now,
        )
        assert row is not None
        until: datetime = row["expires_at"]
        return until

    @transacts
    async def spend_ticket(
        self, tx: Tx, secret_hash: bytes, *, now: Now = None
    ) -> BrowserTicket | None:
        """Spend a ticket, and return what it stands for; None where it was used or is over."""
        row = await tx.one("spend_browser_ticket", secret_hash=secret_hash, now=now)
        if row is None or not row["good"]:
            return None
        return BrowserTicket(sign_in_id=row["sign_in_id"], job_id=row["job_id"], rank=row["rank"])
