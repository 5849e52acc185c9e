"""What jobs wait for."""

from collections.abc import Collection
from typing import Protocol

from holdfast.core.records import WaitRecord
from holdfast.moves.values import Settled
from holdfast.store.port.clock import Now


class DependencyStore(Protocol):
    """Jobs that wait for the end of others. `JobStore.submit_jobs` writes what they wait for."""

    async def settle_dependencies(self, limit: int = 1000, *, now: Now = None) -> Settled:
        """Release or cancel, in one transaction, the dependants of jobs that have ended (AFTER-1),
        at most `limit`.

        Found by an index that holds ended jobs that are waited for, and no others.
        """

    async def list_waits(
        self, job_ids: Collection[str], *, first: int
    ) -> dict[str, list[WaitRecord]]:
        """Return what each job still waits for, at most `first` of it."""
