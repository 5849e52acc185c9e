"""Tokens, by the hashes of their secrets."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.ids import TaskKey
from holdfast.core.records import TokenRecord
from holdfast.moves.values import StoreValue
from holdfast.store.port.clock import Now


class TaskHolder(StoreValue, frozen=True, kw_only=True):
    """A task with a live lease: the hash of its host's key, and its job's owner and project.
    executor: the task is an executor, which runs calls of any user."""

    host_key_hash: bytes
    owner: str
    project: str
    executor: bool


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
        reach: Sequence[str] = (),
        now: Now = None,
    ) -> TokenRecord:
        """Write a token. A repeated id with the same role and name returns the token on record;
        with another role or name it raises Conflict."""

    async def find_token(
        self, secret_hash: bytes, *, also_over: bool = False, now: Now = None
    ) -> TokenRecord | None:
        """Return a token; None for an unknown one, and, unless `also_over` is set, for an expired
        or revoked one."""

    async def use_join_token(self, secret_hash: bytes, *, now: Now = None) -> TokenRecord | None:
        """Spend a one-time join token; None when it is unknown, expired, revoked or spent."""

    async def list_tokens(self) -> list[TokenRecord]:
        """Return every token, oldest first."""

    async def revoke_token(self, token_id: str, *, now: Now = None) -> None:
        """Revoke a token. Raises NotFound."""

    async def find_task_holder(self, key: TaskKey) -> TaskHolder | None:
        """Return the holder of a task's lease under that epoch; None where its lease is over."""
