"""Pools, and the records of their cycles."""

from typing import Protocol

from holdfast.core.fleet.actions import CycleSummary
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import PoolMoney, PoolRecord
from holdfast.store.port.clock import Now


class PoolStore(Protocol):
    """Pools, as operators write them."""

    async def installation(self) -> str:
        """Return the id of this Holdfast: made once for each database, in every machine's name."""

    async def put_pool(self, spec: PoolSpec, *, now: Now = None) -> PoolRecord:
        """Make or replace a pool (checked by the caller). Event pool.created or pool.changed.

        Raises:
            Conflict: it is being deleted (code "pool_deleted").
        """

    async def get_pool(self, name: str) -> PoolRecord:
        """Return a pool. Raises NotFound."""

    async def list_pools(self) -> list[PoolRecord]:
        """Return every pool, by name; those being deleted are among them."""

    async def pause_pool(self, name: str, reason: str, *, now: Now = None) -> PoolRecord:
        """Stop a pool from spawning and shrinking. Event pool.paused. Raises NotFound."""

    async def resume_pool(self, name: str, *, now: Now = None) -> PoolRecord:
        """Let a pool scale again. Event pool.resumed. Raises NotFound."""

    async def delete_pool(self, name: str, *, now: Now = None) -> PoolRecord:
        """Mark a pool deleted: it shrinks to nothing as its hosts become idle, and is forgotten
        then. Event pool.deleted. Raises NotFound."""

    async def note_throttled(
        self, name: str, seconds: float, reason: str, *, now: Now = None
    ) -> None:
        """Write that a pool's provider asks for no requests for at least `seconds` from now."""

    async def forget_pool(self, name: str, *, now: Now = None) -> bool:
        """Forget a deleted pool that has no host and no machine left."""

    async def read_money(self, *, now: Now = None) -> dict[str, PoolMoney]:
        """Return what each pool costs; one that has cost nothing today is missing."""

    async def record_cycle(self, summary: CycleSummary, blocked: str) -> None:
        """Write the summary of a cycle, and drop all but the newest `MAX_CYCLES` of its pool."""

    async def list_cycles(self, name: str, limit: int = 100) -> list[CycleSummary]:
        """Return the cycles of a pool, newest first."""
