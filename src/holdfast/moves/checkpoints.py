"""Checkpoints: the checks before one is stored, and the errors and events about them."""

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.records import CheckpointRecord
from holdfast.core.states import JobState
from holdfast.errors import Conflict, NotFound, Stale
from holdfast.moves.rows import NewEvent

SKIPPED = "task.checkpoint_skipped"
UNUSED = "task.checkpoint_unused"
LIVE = (JobState.RESERVED, JobState.RUNNING, JobState.DRAINING)


class NewCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint whose bytes are in the blob store under `blob`. `sha256`: 32 bytes."""

    blob: str
    size: int
    sha256: bytes
    step: int | None = None


class CheckpointAdded(msgspec.Struct, frozen=True, kw_only=True):
    """A stored checkpoint. dropped: blobs to be deleted, because no row names them any more."""

    record: CheckpointRecord
    dropped: tuple[str, ...] = ()


class KnownBlobStore(msgspec.Struct, frozen=True, kw_only=True):
    """The blob store that a database knows. id: empty where it knows none. place: where the server
    that adopted it found it. served: another server serves."""

    id: str
    place: str
    served: bool


def refuse_task(key: TaskKey, host_id: str) -> Stale:
    """Return the error for bytes of a task that is not, or no longer, this host's (CKPT-1)."""
    return Stale(
        f"no checkpoint of rank {key.rank} of job {key.job_id} under epoch {key.epoch} is taken "
        f"from host {host_id}: that attempt is over, or the rank is another host's",
        code="stale_epoch",
    )


def check_by_hand(
    job_id: str,
    rank: int,
    epoch: int | None,
    *,
    state: JobState,
    now: int,
    attempts: int,
    tasks: int,
) -> None:
    """Check that a person may store a checkpoint. now: the rank's present epoch, else the job's.

    Raises as `CheckpointStore.put_checkpoint` says.
    """
    if not 0 <= rank < tasks:
        raise NotFound(f"job {job_id} has no rank {rank}; it has {tasks}")
    if state is JobState.SUCCEEDED:
        raise Conflict(f"job {job_id} has succeeded and needs no checkpoint")
    if not attempts:
        none = f"job {job_id} has had no attempt yet"
        raise Conflict(f"{none}; give what it starts from to its command")
    live = state in LIVE
    if epoch is None and live:
        other = f"job {job_id} has an attempt under epoch {now}"
        raise Conflict(f"{other}; say that this is its checkpoint with epoch={now}")
    if epoch is not None and (not live or epoch != now):
        none = f"job {job_id} has no attempt under epoch {epoch}"
        raise Stale(f"{none}; it is {state} and its epoch {now}", code="stale_epoch")


def is_repeat(newest: CheckpointRecord | None, epoch: int, new: NewCheckpoint) -> bool:
    """Return whether `new` is the newest checkpoint, sent again because its answer was lost."""
    if newest is None or newest.epoch != epoch:
        return False
    return (newest.size, newest.sha256, newest.step) == (new.size, new.sha256.hex(), new.step)


def skipped_event(
    host_id: str,
    key: TaskKey,
    attempt: int,
    queue: str,
    project: str,
    number: int,
    older: CheckpointRecord,
    reason: str,
) -> NewEvent:
    """Return the event that reports a checkpoint that could not be used."""
    step = "" if older.step is None else f", of step {older.step}"
    return NewEvent(
        kind=SKIPPED,
        job_id=key.job_id,
        attempt=attempt,
        epoch=key.epoch,
        rank=key.rank,
        host_id=host_id,
        queue=queue,
        project=project,
        data={"number": number, "older": older.number, "reason": reason},
        message=f"rank {key.rank} starts from checkpoint {older.number}{step}: number {number} "
        f"cannot be used: {reason}",
    )


def unused_event(
    host_id: str, key: TaskKey, attempt: int, queue: str, project: str, step: int, given: int
) -> NewEvent:
    """Return the event that reports an attempt that did not go on from its checkpoint (UNSAVED-2)."""
    return NewEvent(
        kind=UNUSED,
        job_id=key.job_id,
        attempt=attempt,
        epoch=key.epoch,
        rank=key.rank,
        host_id=host_id,
        queue=queue,
        project=project,
        data={"step": step, "given": given},
        message=f"rank {key.rank} began at step {step}, below the step {given} of the checkpoint "
        "that it was given: its program does not go on from what it saves",
    )


def no_older(job_id: str, rank: int, number: int) -> NotFound:
    """Return the error where no older checkpoint is kept."""
    which = f"rank {rank} of job {job_id} that is older than number {number}"
    return NotFound(f"no checkpoint of {which} is kept")


def no_checkpoint(job_id: str, rank: int, number: int | None, epoch: int | None) -> NotFound:
    """Return the error for a checkpoint that does not exist."""
    which = f" number {number}" if number is not None else ""
    when = f" under epoch {epoch}" if epoch is not None else ""
    none = f"job {job_id} has no checkpoint{which} of rank {rank}{when}"
    return NotFound(f"{none}; `holdfast checkpoints {job_id}` lists them")
