"""Tokens: their hashes and what they are for."""

from datetime import datetime
from typing import Protocol

from holdfast.core.records import TokenRecord
from holdfast.store.port.clock import Now


class TokenStore(Protocol):
    """Tokens by the hash of their secret."""

    async def create_token(
        self,
        token_id: str,
        role: str,
        name: str,
        secret_hash: bytes,
        expires_at: datetime | None,
        *,
        user: str = "",
        now: Now = None,
    ) -> TokenRecord:
        """Write a token. A repeated id with the same role and name returns the token that is there;
        otherwise raises Conflict."""

    async def find_token(
        self, secret_hash: bytes, *, also_over: bool = False, now: Now = None
    ) -> TokenRecord | None:
        """Return a token; None for unknown ones, and without `also_over` for expired or revoked
        ones."""

    async def use_join_token(self, secret_hash: bytes, *, now: Now = None) -> TokenRecord | None:
        """Spend a one-time join token; None when it is unknown, expired, revoked or spent."""

    async def list_tokens(self) -> list[TokenRecord]:
        """Return every token, oldest first."""

    async def revoke_token(self, token_id: str, *, now: Now = None) -> None:
        """Revoke a token. Raises NotFound."""
