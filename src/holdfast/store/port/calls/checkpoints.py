"""Checkpoints of calls for their next attempts: the newest of each call. The bytes are in the blob
store.

SAVED-1  A checkpoint is accepted from, and given to, only the executor that has the call in an open
        batch, while the call has no end in it (CALLSET-1).
SAVED-2  A row is written when its bytes are whole in the blob store. It is deleted after its blob,
         once
        the call has succeeded or its set is gone, because a person may retry a call that failed.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.moves.calls.checkpoints import CallHolder, CallKept
from holdfast.moves.checkpoints import NewCheckpoint


class CallCheckpointStore(Protocol):
    """Checkpoints by (set, index)."""

    async def find_kept(self, holder: CallHolder) -> CallKept:
        """Return the call that an executor names, with its checkpoint. Raises Stale (SAVED-1)."""

    async def keep(self, holder: CallHolder, new: NewCheckpoint) -> tuple[str, ...]:
        """Write a call's checkpoint in place of the one before, whose blob is returned. Raises Stale
        (SAVED-1)."""

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        """Return the blobs of calls that have succeeded or are gone. Delete the blobs, then
        `forget_blobs`."""

    async def forget_blobs(self, names: Sequence[str]) -> None:
        """Delete the rows of these blobs."""

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        """Return which of these blobs must stay: a row names them, or they are no blobs of this
        database's calls."""
