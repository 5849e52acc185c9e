"""What calls left for their next attempts: of each call the newest. The bytes are in the blob store.

SAVED-1  A checkpoint is taken from, and given to, only the executor that holds the call in an open
        batch, while the call has no end in it (CALLSET-1).
SAVED-2  A row is written when its bytes are whole in the blob store. It goes after its blob, when the
        call has succeeded or its set is gone: a call that failed may be retried by a person.
"""

from collections.abc import Sequence
from typing import Protocol

from holdfast.moves.calls.checkpoints import CallHolder, CallKept
from holdfast.moves.checkpoints import NewCheckpoint


class CallCheckpointStore(Protocol):
    """Checkpoints by (set, index)."""

    async def find_kept(self, holder: CallHolder) -> CallKept:
        """Return the call that an executor holds, with what is kept of it. Raises Stale
        (SAVED-1)."""

    async def keep(self, holder: CallHolder, new: NewCheckpoint) -> tuple[str, ...]:
        """Write a call's checkpoint in place of the one before, whose blob is returned. Raises Stale
        (SAVED-1)."""

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        """Return the blobs of calls that have succeeded or are gone. Delete the blobs, then
        `forget_blobs`."""

    async def forget_blobs(self, names: Sequence[str]) -> None:
        """Delete the rows of these blobs."""

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        """Return those of these names that are not to be swept: a row names them, or they are no
        blobs of this database's calls."""
