"""Tokens in memory."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.records import TokenRecord
from holdfast.errors import Conflict
from holdfast.moves.events import no_token
from holdfast.store.memory.state import InMemory, MemoryToken
from holdfast.store.port.clock import Now
from holdfast.store.port.tokens import TaskHolder


class MemoryTokens(InMemory):
    """`TokenStore` in memory."""

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
        token = self.state.tokens.get(token_id)
        if token is None:
            record = TokenRecord(
                id=token_id,
                role=role,
                name=name,
                user=user,
                created_at=self.state.at(now),
                expires_at=expires_at,
                reach=tuple(reach),
            )
            token = self.state.tokens[token_id] = MemoryToken(
                record=record, secret_hash=secret_hash
            )
        elif (token.record.role, token.record.name) != (role, name):
            raise Conflict(f"token {token_id} is there already, for something else")
        return token.record

    def _find(self, secret_hash: bytes, at: datetime) -> MemoryToken | None:
        for token in self.state.tokens.values():
            expires = token.record.expires_at
            if (
                token.secret_hash == secret_hash
                and token.record.revoked_at is None
                and (expires is None or expires > at)
            ):
                return token
        return None

    async def find_token(
        self, secret_hash: bytes, *, also_over: bool = False, now: Now = None
    ) -> TokenRecord | None:
        if also_over:
            every = (
                token.record
                for token in self.state.tokens.values()
                if token.secret_hash == secret_hash
            )
            return next(every, None)
        token = self._find(secret_hash, self.state.at(now))
        return None if token is None else token.record

    async def use_join_token(self, secret_hash: bytes, *, now: Now = None) -> TokenRecord | None:
        at = self.state.at(now)
        token = self._find(secret_hash, at)
        if token is None or token.record.role != "join" or token.record.used_at is not None:
            return None
        token.record = msgspec.structs.replace(token.record, used_at=at)
        return token.record

    async def list_tokens(self) -> list[TokenRecord]:
        return sorted(
            (t.record for t in self.state.tokens.values()), key=lambda t: (t.created_at, t.id)
        )

    async def revoke_token(self, token_id: str, *, now: Now = None) -> None:
        token = self.state.tokens.get(token_id)
        if token is None:
            raise no_token(token_id)
        at = token.record.revoked_at or self.state.at(now)
        token.record = msgspec.structs.replace(token.record, revoked_at=at)

    async def find_task_holder(self, key: TaskKey) -> TaskHolder | None:
        task = self.state.tasks.get(key.job_id, {}).get(key.rank)
        if task is None or task.epoch != key.epoch or not task.state.holds_lease:
            return None
        host = self.state.hosts.get(task.host_id or "")
        job = self.state.jobs[key.job_id]
        if host is None or host.key_hash is None:
            return None
        return TaskHolder(
            host_key_hash=host.key_hash,
            owner=job.owner,
            project=job.row.project,
            executor=bool(job.spec.executor),
        )
