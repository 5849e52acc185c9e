"""Packs: many small files as one blob, with an index in front. Pure.

A pack is four bytes that name its form, the length of its index, the index (the SHA-256 and the
size of each part, in order), and the parts' bytes.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import msgspec

from holdfast.core.bundles.manifest import SHA_BYTES, WHOLE_BYTES
from holdfast.errors import ValidationError

PACK_BYTES = 8 << 20
"""Bytes of files in a pack; one file of up to `WHOLE_BYTES` may be a pack by itself."""
MAX_PARTS = 65_536
MAX_PACK_BYTES = WHOLE_BYTES + (4 << 20)
_HEAD = struct.Struct(">4sI")
_MAGIC = b"HFP1"
_Index = list[tuple[bytes, int]]
_decoder = msgspec.msgpack.Decoder(_Index)


class PackPart(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A file or piece in a pack. at: the offset of its first byte in the pack."""

    sha256: bytes
    at: int
    size: int


class BundlePlan(msgspec.Struct, frozen=True, array_like=True):
    """A bundle with the places of its bytes, as the controller keeps it.

    manifest: its bytes as they were uploaded. packs: the ids of the packs that are needed. places:
    for each digest of the manifest, in the order of `list_digests`, the index of the digest's pack
    and its offset there.
    """

    manifest: bytes
    packs: list[str]
    places: list[tuple[int, int]]


encode_plan = msgspec.msgpack.Encoder().encode
decode_plan = msgspec.msgpack.Decoder(BundlePlan).decode


def head_of_pack(parts: Sequence[tuple[bytes, int]]) -> bytes:
    """Return the head of a pack, which stands before the bytes of its parts and names each part by
    its SHA-256 and its size."""
    index = msgspec.msgpack.encode(list(parts))
    return _HEAD.pack(_MAGIC, len(index)) + index


def read_pack(data: bytes) -> list[PackPart]:
    """Return the parts of a pack, after a comparison of their bytes with their digests. Raises
    ValidationError where these differ."""
    try:
        magic, length = _HEAD.unpack_from(data)
        index = _decoder.decode(data[_HEAD.size : _HEAD.size + length])
    except (struct.error, msgspec.DecodeError) as error:
        raise ValidationError(f"this is no pack: {error}") from None
    if magic != _MAGIC or not 1 <= len(index) <= MAX_PARTS:
        raise ValidationError("this is no pack of this version")
    at, view, parts = _HEAD.size + length, memoryview(data), []
    for sha256, size in index:
        if len(sha256) != SHA_BYTES or not 1 <= size <= WHOLE_BYTES or at + size > len(data):
            raise ValidationError("the pack's index does not fit its bytes")
        if hashlib.sha256(view[at : at + size]).digest() != sha256:
            raise ValidationError(
                f"the bytes of {sha256.hex()} have another SHA-256: they changed while they were "
                "read, or on their way",
                code="checksum_mismatch",
            )
        parts.append(PackPart(sha256, at, size))
        at += size
    if at != len(data):
        raise ValidationError("the pack's index does not fit its bytes")
    return parts
