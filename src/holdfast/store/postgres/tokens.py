"""Tokens in PostgreSQL."""

from collections.abc import Sequence
from datetime import datetime

from holdfast.core.ids import TaskKey
from holdfast.core.records import TokenRecord
from holdfast.errors import Conflict
from holdfast.moves.events import no_token, token_event
from holdfast.moves.values import StoreValue
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.moves import write_events


class TaskHolder(StoreValue, frozen=True, kw_only=True):
    """A task with a live lease: the hash of its host's key, and its job's owner and project.
    executor: the task is an executor, which runs calls of any user."""

    host_key_hash: bytes
    owner: str
    project: str
    executor: bool


class PostgresTokens(OnSession):
    """Tokens by the hash of their secret."""

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
        user: str = "",
        reach: Sequence[str] = (),
        now: Now = None,
    ) -> TokenRecord:
        """Write a token. A repeated id with the same role and name returns the token on record;
        with another role or name it raises Conflict."""
        made = await tx.run(
            "insert_token",
            id=token_id,
            role=role,
            name=name,
            user=user,
            secret_hash=secret_hash,
            expires_at=expires_at,
            reach=list(reach),
            now=now,
        )
        found = await tx.find(TokenRecord, "read_token", id=token_id)
        if found is None or (found.role, found.name) != (role, name):
            raise Conflict(f"token {token_id} is there already, for something else")
        if made:
            text = f"token {name or token_id} was made: {role}, for {found.acts_for}"
            await write_events(tx, [token_event("created", token_id, text)], await tx.now(now))
        return found

    @reads
    async def find_token(
        self, tx: Tx, secret_hash: bytes, *, also_over: bool = False, now: Now = None
    ) -> TokenRecord | None:
        """Return a token. Return None for an unknown token and, unless `also_over` is set, for an
        expired or revoked one."""
        given = {"secret_hash": secret_hash, "also_over": also_over, "now": now}
        return await tx.find(TokenRecord, "find_token", **given)

    @transacts
    async def use_join_token(
        self, tx: Tx, secret_hash: bytes, *, now: Now = None
    ) -> TokenRecord | None:
        """Spend a one-time join token and return it; return None where the token is unknown,
        expired, revoked or spent."""
        return await tx.find(TokenRecord, "use_join_token", secret_hash=secret_hash, now=now)

    async def list_tokens(self) -> list[TokenRecord]:
        """Return every token, oldest first."""
        return await self.session.list_of(TokenRecord, "list_tokens")

    @transacts
    async def revoke_token(self, tx: Tx, token_id: str, *, now: Now = None) -> None:
        """Revoke a token. Raises NotFound."""
        row = await tx.one("revoke_token", id=token_id, now=now)
        if row is None:
            raise no_token(token_id)
        text = f"token {row['name'] or token_id} was revoked"
        await write_events(tx, [token_event("revoked", token_id, text)], await tx.now(now))

    @reads
    async def find_task_holder(self, tx: Tx, key: TaskKey) -> TaskHolder | None:
        """Return the holder of the lease on a task under the key's epoch; None where that lease is
        over."""
        row = await tx.one("find_task_holder", job_id=key.job_id, rank=key.rank, epoch=key.epoch)
        return None if row is None else TaskHolder(**row)
