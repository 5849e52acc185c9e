"""Events and tokens in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.records import EventRecord, TokenRecord
from holdfast.errors import Conflict
from holdfast.moves.events import format_event_id, no_token, parse_event_id
from holdfast.store.postgres.connection.session import Session, Tx


class RecordsPart:
    """The part of the store that reads the event record and keeps tokens."""

    session: Session

    async def read_events(
        self,
        after: str | None,
        *,
        limit: int = 500,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int = 0,
    ) -> list[EventRecord]:
        """See `Store.read_events`."""
        common = {"job_id": job_id, "kinds": list(kinds) or None}
        if after is None and tail > 0:
            rows = await self.session.rows("tail_events", {**common, "limit": tail}, prepare=False)
        else:
            tx, number = parse_event_id(after)
            params = {**common, "tx": str(tx), "id": number, "limit": limit}
            rows = await self.session.rows("read_events", params, prepare=False)
        return [make_event(row) for row in rows]

    async def create_token(
        self,
        token_id: str,
        role: str,
        name: str,
        secret_hash: bytes,
        expires_at: datetime | None,
        *,
        now: datetime | None = None,
    ) -> TokenRecord:
        """See `Store.create_token`."""

        async def work(tx: Tx) -> TokenRecord:
            await tx.run(
                "insert_token",
                {
                    "id": token_id,
                    "role": role,
                    "name": name,
                    "secret_hash": secret_hash,
                    "expires_at": expires_at,
                    "now": now,
                },
            )
            found = _token(await tx.one("read_token", {"id": token_id}))
            if found is None or (found.role, found.name) != (role, name):
                raise Conflict(f"token {token_id} is there already, for something else")
            return found

        return await self.session.transact(work)

    async def find_token(
        self, secret_hash: bytes, *, now: datetime | None = None
    ) -> TokenRecord | None:
        """See `Store.find_token`."""
        params = {"secret_hash": secret_hash, "now": now}
        return _token(await self.session.single(lambda tx: tx.one("find_token", params)))

    async def use_join_token(
        self, secret_hash: bytes, *, now: datetime | None = None
    ) -> TokenRecord | None:
        """See `Store.use_join_token`."""
        params = {"secret_hash": secret_hash, "now": now}
        return _token(await self.session.transact(lambda tx: tx.one("use_join_token", params)))

    async def list_tokens(self) -> list[TokenRecord]:
        """See `Store.list_tokens`."""
        return [msgspec.convert(row, TokenRecord) for row in await self.session.rows("list_tokens")]

    async def revoke_token(self, token_id: str, *, now: datetime | None = None) -> None:
        """See `Store.revoke_token`."""
        if (
            await self.session.transact(
                lambda tx: tx.one("revoke_token", {"id": token_id, "now": now})
            )
            is None
        ):
            raise no_token(token_id)


def make_event(row: dict[str, Any]) -> EventRecord:
    """A row of the events as readers get it."""
    row.pop("place", None)
    row["id"] = format_event_id(int(row.pop("tx")), row["id"])
    return msgspec.convert(row, EventRecord)


def _token(row: dict[str, Any] | None) -> TokenRecord | None:
    return None if row is None else msgspec.convert(row, TokenRecord)
