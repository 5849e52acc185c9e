"""Arrays of jobs."""

from collections.abc import Collection
from typing import Protocol

from holdfast.core.arrays.records import ArrayRecord
from holdfast.moves.values import Advanced, ArrayFilter, ArraySubmitted, NewArray
from holdfast.store.port.clock import Now


class ArrayStore(Protocol):
    """Arrays: one submission, many jobs, one line of state. The members are jobs like others."""

    async def submit_array(self, array: NewArray, *, now: Now = None) -> ArraySubmitted:
        """Write an array and all of its members, or nothing.

        Raises:
            Conflict: its idempotency key names an array that differs (code "idempotency_mismatch").
            QuotaExceeded: the project's quota forbids so many jobs (QUOTA-1).
            ValidationError: a job that it is to wait for, or its queue, does not exist.
        """

    async def get_array(self, array_id: str) -> ArrayRecord:
        """Return an array. Raises NotFound."""

    async def list_arrays(self, filter: ArrayFilter) -> list[ArrayRecord]:
        """Return the arrays that pass the filter, newest first."""

    async def find_members(self, array_id: str, indices: Collection[int]) -> dict[int, str]:
        """Return index → job id; unknown ones are missing."""

    async def cancel_array(
        self, array_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> ArrayRecord:
        """Note that every unfinished member is to be cancelled; `advance_arrays` cancels them in
        batches, even if this caller has gone. Raises NotFound."""

    async def retry_array(self, array_id: str, reason: str, *, now: Now = None) -> int:
        """Give each member that has failed another attempt, as `revive_job` does; return how many.

        Raises:
            Conflict: it is being cancelled. NotFound. QuotaExceeded.
        """

    async def advance_arrays(
        self, limit: int = 500, *, only: str | None = None, now: Now = None
    ) -> Advanced:
        """Release members whose turn has come (ARRAY-1), and cancel those of arrays that are being
        cancelled, at most `limit` of each array; of one array where `only` is given."""
