"""Jobs that wait for the ends of other jobs."""

from collections.abc import Collection
from typing import Protocol

from holdfast.core.records import WaitRecord
from holdfast.moves.values import Advanced
from holdfast.store.port.clock import Now


class DependencyStore(Protocol):
    """The waits of jobs for the ends of others, which `JobStore.submit_jobs` writes."""

    async def settle_dependencies(self, limit: int = 1000, *, now: Now = None) -> Advanced:
        """Release or cancel, in one transaction, the dependants of jobs that have ended (AFTER-1),
        at most `limit`.

        An index that holds only ended jobs with dependants finds them quickly.
        """

    async def list_waits(
        self, job_ids: Collection[str], *, first: int
    ) -> dict[str, list[WaitRecord]]:
        """Return the parents for which each job still waits, at most `first` of each."""
