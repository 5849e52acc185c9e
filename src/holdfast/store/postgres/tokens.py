"""Tokens in PostgreSQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.records import TokenRecord
from holdfast.errors import Conflict
from holdfast.moves.events import no_token
from holdfast.store.port.clock import Now
from holdfast.store.postgres.connection.session import OnSession, Tx, transacts


class PostgresTokens(OnSession):
    """`TokenStore` on PostgreSQL."""

    @transacts
    async def create_token(
        self,
        tx: Tx,
        token_id: str,
        role: str,
        name: str,
        secret_hash: bytes,
        expires_at: datetime | None,
        *,
        now: Now = None,
    ) -> TokenRecord:
        await tx.run(
            "insert_token",
            id=token_id,
            role=role,
            name=name,
            secret_hash=secret_hash,
            expires_at=expires_at,
            now=now,
        )
        found = _token(await tx.one("read_token", id=token_id))
        if found is None or (found.role, found.name) != (role, name):
            raise Conflict(f"token {token_id} is there already, for something else")
        return found

    async def find_token(self, secret_hash: bytes, *, now: Now = None) -> TokenRecord | None:
        params = {"secret_hash": secret_hash, "now": now}
        return _token(await self.session.single(lambda tx: tx.one("find_token", **params)))

    async def use_join_token(self, secret_hash: bytes, *, now: Now = None) -> TokenRecord | None:
        params = {"secret_hash": secret_hash, "now": now}
        return _token(await self.session.transact(lambda tx: tx.one("use_join_token", **params)))

    async def list_tokens(self) -> list[TokenRecord]:
        return await self.session.list_of(TokenRecord, "list_tokens")

    @transacts
    async def revoke_token(self, tx: Tx, token_id: str, *, now: Now = None) -> None:
        if await tx.one("revoke_token", id=token_id, now=now) is None:
            raise no_token(token_id)


def _token(row: dict[str, Any] | None) -> TokenRecord | None:
    return None if row is None else msgspec.convert(row, TokenRecord)
