"""Arguments and results that are too large for a row: bytes by their SHA-256, in the blob store.

VALUE-1  A value's name is the hash of its bytes, so a repeat changes nothing, and its reader checks
         the bytes that it receives. A value lives as long as the history (`history_days`) after it
         was written, and as long as an argument or a result on record names it.
"""

import hashlib
import re
from collections.abc import AsyncIterator

from starlette.responses import Response

from holdfast.blobs.interface import BlobMissing
from holdfast.controller.api.checkpoints.bytes import Announced, Upload
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.sse import StreamAnswer, chain_pieces
from holdfast.controller.runtime.context import Controller
from holdfast.errors import NotFound, TooLarge

VALUES = "values/"
_SHA = re.compile(r"[0-9a-f]{64}")


async def put_value(call: ApiCall) -> Response:
    """Keep a value; the body is the bytes."""
    sha256 = _read_sha(call)
    limit = int((await call.controller.settings.current()).number("call_value_max_mb") * 2**20)

    def refuse(limit_bytes: int) -> TooLarge:
        text = f"a value of a call may have {limit_bytes} bytes (call_value_max_mb)"
        return TooLarge(f"{text}; keep larger ones elsewhere and pass their path or address")

    length = call.header("content-length")
    size = int(length) if length is not None and length.isdigit() else None
    if size is not None and size > limit:
        raise refuse(limit)
    upload = Upload(call.receive, Announced(size, sha256), limit, refuse)
    await call.controller.blobs.write(VALUES + sha256, upload.pieces(), size=size)
    return Response(status_code=204)


async def get_value(call: ApiCall) -> Response:
    """Return a value's bytes."""
    sha256 = _read_sha(call)
    pieces = call.controller.blobs.read(VALUES + sha256)
    try:
        # Read the first piece before the head goes out: a value that cannot be read is then a problem,
        # not a broken stream.
        first = await anext(pieces, b"")
    except BlobMissing:
        raise _no_value(sha256) from None
    return StreamAnswer(
        call.controller,
        chain_pieces(first, pieces),
        media_type="application/octet-stream",
        keep_alive=False,
    )


async def keep_value(controller: Controller, data: bytes) -> str:
    """Keep a value that the controller made; return its name."""

    async def pieces() -> AsyncIterator[bytes]:
        yield data

    sha256 = hashlib.sha256(data).hexdigest()
    await controller.blobs.write(VALUES + sha256, pieces(), size=len(data))
    return sha256


async def load_value(controller: Controller, sha256: str) -> bytes:
    """Return a value's bytes. Raises NotFound."""
    try:
        pieces = [piece async for piece in controller.blobs.read(VALUES + sha256)]
    except BlobMissing:
        raise _no_value(sha256) from None
    return b"".join(pieces)


def _no_value(sha256: str) -> NotFound:
    return NotFound(
        f"there is no value {sha256}; it was older than the history, and nothing named it"
    )


def _read_sha(call: ApiCall) -> str:
    sha256 = call.params["sha256"]
    if not _SHA.fullmatch(sha256):
        form = "a value is named by the SHA-256 of its bytes: 64 characters of 0-9 and a-f"
        raise NotFound(f"there is no {sha256[:80]!r} here: {form}")
    return sha256
