"""The bytes of checkpoints between a socket and the blob store, a piece at a time.

CKPT-3  Memory does not grow with a checkpoint's size: only one piece is held, and the next is read
        when it has been written.
CKPT-4  Bytes become a checkpoint when all of them came and their size and SHA-256 are what the
        sender announced. The blob is whole before its row is written, and the row is deleted before
        the blob. So a row always names a whole blob, and a crash can only leave a blob without a
        row, which is swept.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING

import msgspec
from starlette.types import Receive

from holdfast.blobs.interface import BlobsUnavailable
from holdfast.controller.http.bodies import Gone
from holdfast.controller.http.problems import SlowRequest
from holdfast.controller.runtime.auth import make_new_id
from holdfast.core.ids import TaskKey
from holdfast.core.records import CheckpointRecord
from holdfast.errors import HoldfastError, TooLarge, Unavailable, ValidationError
from holdfast.moves.checkpoints import CheckpointAdded, NewCheckpoint

if TYPE_CHECKING:
    from holdfast.controller.http.endpoints import ApiCall
    from holdfast.controller.runtime.context import Controller

log = logging.getLogger("holdfast.controller")

SILENCE_SECONDS = 30.0
LEAST_BYTES = 64 * 1024
"""A sender that delivers less than `LEAST_BYTES` in `SILENCE_SECONDS` (2 kB/s) is cut off: it is
gone, or it keeps a connection and a file busy for nothing."""
SHA_HEADER = "Holdfast-Sha256"
_SHA = re.compile(r"[0-9a-f]{64}")


class Announced(msgspec.Struct, frozen=True):
    """The size and checksum that the headers of an upload announce. A field that is None was not
    announced, and is not checked."""

    size: int | None
    sha256: str | None


def read_announcement(call: ApiCall, limit_bytes: int, *, need_sha: bool) -> Announced:
    """Read the headers of an upload.

    Raises:
        TooLarge: the announced size is over the limit; no byte of the body was read.
        ValidationError: the checksum is malformed, or missing where `need_sha`.
    """
    length, sha = call.header("content-length"), call.header(SHA_HEADER.lower())
    size = int(length) if length is not None and length.isdigit() else None
    if size is not None and size > limit_bytes:
        raise too_large(limit_bytes)
    if sha is None and need_sha:
        raise ValidationError(
            f"give the bytes' SHA-256 in the header {SHA_HEADER}", field=SHA_HEADER
        )
    if sha is not None and not _SHA.fullmatch(sha):
        raise ValidationError(f"{SHA_HEADER} is 64 characters of 0-9 and a-f", field=SHA_HEADER)
    return Announced(size, sha)


def too_large(limit_bytes: int) -> TooLarge:
    """Return the error for a checkpoint over its queue's limit."""
    return TooLarge(
        f"a checkpoint of this queue may have {limit_bytes} bytes (checkpoint_max_mb); keep "
        "larger ones elsewhere and save their path or address",
        code="checkpoint_too_large",
    )


class Upload:
    """One request body on its way into the blob store. `size` and `digest` cover the bytes received
    so far.

    refuse: a function that makes the error for a body over the limit.
    """

    def __init__(
        self,
        receive: Receive,
        announced: Announced,
        limit_bytes: int,
        refuse: Callable[[int], TooLarge] = too_large,
    ) -> None:
        self._refuse = refuse
        self._receive = receive
        self._announced = announced
        self._limit_bytes = limit_bytes
        self._hash = hashlib.sha256()
        self.size = 0

    @property
    def digest(self) -> bytes:
        """Return the SHA-256 of the bytes received so far."""
        return self._hash.digest()

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body, piece by piece. Raises an error where the body differs from its
        announcement (CKPT-4)."""
        loop, more, waited, came = asyncio.get_running_loop(), True, 0.0, 0
        while more:
            began = loop.time()  # the blob store's time is not the sender's
            try:
                async with asyncio.timeout(max(0.0, SILENCE_SECONDS - waited)):
                    message = await self._receive()
            except TimeoutError:
                raise SlowRequest(
                    f"{came} bytes of the body came in {SILENCE_SECONDS:g} s"
                ) from None
            if message["type"] == "http.disconnect":
                raise Gone
            piece, more = message.get("body", b""), message.get("more_body", False)
            waited, came = waited + loop.time() - began, came + len(piece)
            if came >= LEAST_BYTES:
                waited, came = 0.0, 0
            self.size += len(piece)
            if self.size > self._limit_bytes:
                raise self._refuse(self._limit_bytes)
            if piece:
                self._hash.update(piece)
                yield piece
        said = self._announced
        if said.size is not None and self.size != said.size:
            raise ValidationError(
                f"{said.size} bytes were announced and {self.size} came", code="size_mismatch"
            )
        if said.sha256 is not None and self._hash.hexdigest() != said.sha256:
            raise ValidationError(
                f"the bytes have SHA-256 {self._hash.hexdigest()}, not {said.sha256}: they "
                "changed while they were read, or on their way",
                code="checksum_mismatch",
            )


async def keep_bytes(
    controller: Controller,
    call: ApiCall,
    key: TaskKey,
    announced: Announced,
    limit_bytes: int,
    step: int | None,
) -> NewCheckpoint:
    """Write the body of `call` into the blob store; no row names it yet."""
    upload = Upload(call.receive, announced, limit_bytes)
    blob = f"{key.job_id}/{key.rank}.{key.epoch}.{make_new_id()}"
    await controller.blobs.write(blob, upload.pieces(), size=announced.size)
    return NewCheckpoint(blob=blob, size=upload.size, sha256=upload.digest, step=step)


def note_added(controller: Controller, key: TaskKey, added: CheckpointAdded) -> None:
    """Count and log a new checkpoint, and delete the blobs that it replaced."""
    record = added.record
    controller.saved.add(key.job_id)
    controller.metrics.checkpoints.inc()
    controller.metrics.checkpoint_bytes.inc(record.size)
    step = "" if record.step is None else f" at step {record.step}"
    log.info(
        "checkpoint %d of rank %d%s: %d bytes",
        record.number,
        record.rank,
        step,
        record.size,
        extra={"job": key.job_id, "epoch": key.epoch, "rank": key.rank, "attempt": record.attempt},
    )
    drop_blobs(controller, added.dropped)


def drop_blobs(controller: Controller, blobs: Collection[str]) -> None:
    """Delete, in the background, blobs that no row names any more. The sweep deletes later any blob
    whose deletion fails here."""
    if blobs:
        controller.background.start(_drop(controller, list(blobs)))


async def _drop(controller: Controller, blobs: list[str]) -> None:
    try:
        await controller.blobs.delete(blobs)
    except BlobsUnavailable as error:
        log.warning("%d blobs are deleted later: %s", len(blobs), error)


async def drop_unknown(controller: Controller, blob: str) -> None:
    """Delete `blob` unless a row names it, because the write of its row failed or its outcome is
    unknown."""
    try:
        if blob not in await controller.store.checkpoints.find_known_blobs([blob]):
            await controller.blobs.delete([blob])
    except HoldfastError as error:
        level = logging.DEBUG if isinstance(error, Unavailable) else logging.WARNING
        log.log(level, "the blob %s is left to the sweep: %s", blob, error)


async def read_checked(
    controller: Controller, record: CheckpointRecord, blob: str
) -> AsyncIterator[bytes]:
    """Yield a checkpoint's bytes. A blob whose length is not its row's is refused, and one that
    changes while it is read breaks off, so that the reader notices."""
    size = 0
    async for piece in controller.blobs.read(blob, size=record.size):
        size += len(piece)
        yield piece
    if size != record.size:
        raise BlobsUnavailable(f"the blob {blob} has {size} bytes, not {record.size}")
