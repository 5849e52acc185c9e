"""Checkpoints of calls: the call for which an executor may save one, and the names of their
blobs."""

import re
from collections.abc import Collection

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.errors import Stale
from holdfast.moves.calls.calls import OpenBatch
from holdfast.moves.calls.pieces import find_position
from holdfast.moves.values import StoreValue

FOLDER = "calls/"
"""The prefix of the names of calls' blobs, which lie beside those of jobs."""
_NAME = re.compile(r"calls/([^/]+)/(\d{1,9})\.[^/]+")


class CallHolder(StoreValue, frozen=True, kw_only=True):
    """A call as its executor names it: the executor's host and task, its batch, and its
    position."""

    host_id: str
    key: TaskKey
    batch: int
    position: int


class CallKept(StoreValue, frozen=True, kw_only=True):
    """A call and its checkpoint. blob: the checkpoint's name in the blob store, None without
    one."""

    set_id: str
    index: int
    blob: str | None = None
    size: int = 0
    sha256: str = ""


class CallBlob(msgspec.Struct, frozen=True, kw_only=True):
    """A blob of a call, read from its name."""

    set_id: str
    index: int
    blob: str


def name_blob(call: CallKept, new_id: str) -> str:
    """Return the name of a new blob of a call."""
    return f"{FOLDER}{call.set_id}/{call.index}.{new_id}"


def read_blobs(names: Collection[str]) -> list[CallBlob]:
    """Return the blobs of calls among blobs of these names."""
    found = [(name, _NAME.fullmatch(name)) for name in names]
    return [CallBlob(set_id=m[1], index=int(m[2]), blob=name) for name, m in found if m]


def locate_call(batch: OpenBatch | None, holder: CallHolder) -> tuple[int, int]:
    """Return the number of the set and the index of the call that an executor names. Raises Stale
    where the executor does not have the call any more (SAVED-1)."""
    key = holder.key
    if batch is not None and (batch.job_id, batch.task_rank, batch.epoch, batch.host_id) == (
        key.job_id,
        key.rank,
        key.epoch,
        holder.host_id,
    ):
        found = find_position(batch.pieces, holder.position)
        if found is not None and any(a <= holder.position < b for a, b in batch.left):
            return found[0].set_n, found[1]
    raise Stale(
        f"executor {key.job_id} does not hold call {holder.position} of batch {holder.batch} any "
        "more: it has ended, or another executor runs it",
        code="stale_epoch",
    )
