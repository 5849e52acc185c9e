"""The rows of checkpoints; their bytes are in the blob store.

CKPT-1  A checkpoint is accepted only from the host and incarnation on which the current attempt's
        rank was placed, under the attempt's epoch, while the attempt is reserved, running or
        draining (FENCE-1).
CKPT-2  A row is written when its bytes are whole in the blob store, so the newest row is always a
        checkpoint that can be fetched.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast.core.ids import TaskKey
from holdfast.core.records import CheckpointRecord
from holdfast.moves.checkpoints import CheckpointAdded, NewCheckpoint
from holdfast.store.port.clock import Now


class CheckpointStore(Protocol):
    """Checkpoints by (job, rank, number)."""

    async def check_checkpoint(self, host_id: str, incarnation: str, key: TaskKey) -> int:
        """Return the attempt's number. Raises Stale where a checkpoint of this task would not be
        accepted (CKPT-1)."""

    async def add_checkpoint(
        self,
        host_id: str,
        incarnation: str,
        key: TaskKey,
        new: NewCheckpoint,
        keep: int,
        *,
        now: Now = None,
    ) -> CheckpointAdded:
        """Write a checkpoint of a task and drop all but the last `keep` of its rank. A checkpoint
        with the size, checksum and step of the newest of this epoch is a repeated call, and returns
        the row of that one. Raises Stale (CKPT-1)."""

    async def put_checkpoint(
        self,
        job_id: str,
        rank: int,
        epoch: int | None,
        new: NewCheckpoint,
        keep: int,
        *,
        now: Now = None,
    ) -> CheckpointAdded:
        """Write a checkpoint on a person's behalf.

        epoch: the one the rank runs under (its HOLDFAST_EPOCH), while its attempt is reserved,
        running or draining; None while no attempt is.

        Raises:
            NotFound: no such job, or no such rank.
            Stale: another epoch.
            Conflict: an attempt is there and no epoch was given; the job never had an attempt, or
            has succeeded.
        """

    async def list_checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        """Return a job's checkpoints by rank, then number."""

    async def find_checkpoint(
        self, job_id: str, rank: int, *, number: int | None = None, epoch: int | None = None
    ) -> tuple[CheckpointRecord, str]:
        """Return the newest checkpoint of a rank (of an epoch), or the one of that number, and its
        blob. Raises NotFound."""

    async def find_newest_checkpoints(
        self, ranks: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], CheckpointRecord]:
        """Return (job, rank) → newest checkpoint; ranks without one are missing."""

    async def skip_checkpoint(
        self,
        host_id: str,
        incarnation: str,
        key: TaskKey,
        number: int,
        reason: str,
        *,
        now: Now = None,
    ) -> CheckpointRecord:
        """Return the checkpoint before `number`, because a task of this host cannot start from that
        one. Event task.checkpoint_skipped, once for each epoch and number. Nothing is deleted,
        because a person may want to look.

        Raises:
            Stale: CKPT-1. NotFound: nothing older is kept.
        """

    async def delete_checkpoints(
        self, job_id: str, *, rank: int | None = None, number: int | None = None
    ) -> tuple[str, ...]:
        """Forget the checkpoints of a job or of one rank, or one of them. Returns their blobs."""

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        """Return the blobs of checkpoints whose jobs have succeeded or are gone. Delete the blobs,
        then call `forget_blobs`."""

    async def forget_blobs(self, names: Sequence[str]) -> None:
        """Delete the rows that name these deleted blobs. A blob without a row is no error."""

    async def find_inputs(self, hashes: Sequence[str]) -> set[str]:
        """Return which of these values a job, an array or a schedule on record reads as its standard
        input."""

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        """Return which of these blobs must stay: a row names them, or their jobs are not known
        here."""
