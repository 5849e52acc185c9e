"""Pools, and what their cycles leave on record."""

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
        """Have it spawn nothing and shrink by nothing. Event pool.paused. Raises NotFound."""

    async def resume_pool(self, name: str, *, now: Now = None) -> PoolRecord:
        """Have it scale again. Event pool.resumed. Raises NotFound."""

    async def delete_pool(self, name: str, *, now: Now = None) -> PoolRecord:
        """Have it shrink to nothing, as its hosts fall idle, and be forgotten then. Event
        pool.deleted. Raises NotFound."""

    async def note_throttled(
        self, name: str, seconds: float, reason: str, *, now: Now = None
    ) -> None:
        """Write that a pool's provider asks to be left in peace for `seconds` from now, at least."""

    async def forget_pool(self, name: str, *, now: Now = None) -> bool:
        """Forget a deleted pool that has no host and no machine left."""

    async def read_money(self, *, now: Now = None) -> dict[str, PoolMoney]:
        """Return what each pool costs; one that has cost nothing today is missing."""

    async def record_cycle(self, summary: CycleSummary, blocked: str) -> None:
        """Keep the summary of a cycle, of each pool the newest `MAX_CYCLES`."""

    async def list_cycles(self, name: str, limit: int = 100) -> list[CycleSummary]:
        """Return the cycles of a pool, newest first."""
