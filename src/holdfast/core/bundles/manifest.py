"""The manifest of a bundle: what stands in a folder, and the digests of its bytes. Pure.

BUNDLE-1  A manifest names places below its folder only: no absolute path, no `..`, nothing below a
          link or a file, no bit but the nine of reading, writing and executing. `check_manifest`
          holds this where a manifest comes in, and where it is laid down.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Literal

import msgspec

from holdfast.errors import TooLarge, ValidationError

PIECE_BYTES = 8 << 20
"""A file larger than `WHOLE_BYTES` is kept as pieces of this size."""
WHOLE_BYTES = 16 << 20
MAX_MANIFEST_BYTES = 96 << 20
MAX_ENTRIES = 1 << 20
"""Most entries of a manifest, because bytes that pack well could name twenty millions in memory."""
SHA_BYTES = 32
FILE: Literal[0] = 0
FOLDER: Literal[1] = 1
LINK: Literal[2] = 2
_MAX_PATH, _MAX_PART = 4095, 255
_VERSION: Literal[1] = 1


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One entry of a folder: a file, a folder or a link.

    path: its name below the folder, as bytes, because not every name is UTF-8. kind: FILE, FOLDER
    or LINK. bits: its permissions. size, digests: the number of a file's bytes, and the SHA-256 of
    each of its pieces, one after the other. target: the path to which a link points.
    """

    path: bytes
    kind: Literal[0, 1, 2]
    bits: int = 0
    size: int = 0
    digests: bytes = b""
    target: bytes = b""

    def list_pieces(self) -> Iterator[tuple[bytes, int, int]]:
        """Yield the SHA-256, the offset and the size of each piece of a file."""
        step = self.size if self.size <= WHOLE_BYTES else PIECE_BYTES
        for number in range(count_pieces(self.size)):
            at = number * step
            digest = self.digests[number * SHA_BYTES : (number + 1) * SHA_BYTES]
            yield digest, at, min(step, self.size - at)


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """The entries of a folder, sorted by path."""

    version: Literal[1]
    entries: Annotated[list[Entry], msgspec.Meta(max_length=MAX_ENTRIES)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Manifest)


def count_pieces(size: int) -> int:
    """Return the number of pieces of which a file of `size` bytes is made: none where the file is
    empty."""
    if size <= WHOLE_BYTES:
        return 1 if size else 0
    return -(-size // PIECE_BYTES)


def encode_manifest(entries: Iterable[Entry]) -> tuple[str, bytes]:
    """Return the digest of a manifest and its bytes, compressed."""
    digest, raw = name_manifest(sorted(entries, key=lambda entry: entry.path))
    return digest, compress_manifest(raw)


def name_manifest(entries: list[Entry]) -> tuple[str, bytes]:
    """Return the digest of a manifest whose entries are sorted by path, and the bytes that were
    digested."""
    raw = _encoder.encode(Manifest(_VERSION, entries))
    return hashlib.sha256(raw).hexdigest(), raw


def compress_manifest(raw: bytes) -> bytes:
    """Return the bytes of a manifest as they go over the wire and are kept."""
    return zlib.compress(raw, 1)


def decode_manifest(data: bytes) -> tuple[str, list[Entry]]:
    """Return the digest and the entries of a manifest, checked (BUNDLE-1).

    Raises:
        TooLarge: the manifest has more bytes than allowed.
        ValidationError: the manifest cannot be read, or names a place outside of its folder.
    """
    try:
        stream = zlib.decompressobj()
        raw = stream.decompress(data, MAX_MANIFEST_BYTES)
    except zlib.error as error:
        raise ValidationError(f"the manifest cannot be unpacked: {error}") from None
    if stream.unconsumed_tail:
        raise TooLarge(f"the manifest has more than {MAX_MANIFEST_BYTES} bytes; send a part of it")
    try:
        entries = _decoder.decode(raw).entries
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValidationError(f"the manifest cannot be read: {error}") from None
    check_manifest(entries)
    return hashlib.sha256(raw).hexdigest(), entries


def check_manifest(entries: Sequence[Entry]) -> None:
    """Raise ValidationError where a manifest names a place outside of its folder (BUNDLE-1)."""
    last, folders = b"", {b""}
    for entry in entries:
        trouble = _find_trouble(entry)
        above = entry.path.rpartition(b"/")[0]
        if trouble is None and entry.path <= last:
            trouble = "it stands there twice, or not in order"
        if trouble is None and above not in folders:
            trouble = "what it stands in is no folder of the manifest"
        if trouble is not None:
            raise ValidationError(f"the manifest names {show_path(entry.path)}: {trouble}")
        if entry.kind == FOLDER:
            folders.add(entry.path)
        last = entry.path


def _find_trouble(entry: Entry) -> str | None:
    path = entry.path
    if not path or len(path) > _MAX_PATH or b"\0" in path:
        return "a path has 1 to 4095 bytes, and no NUL"
    for part in path.split(b"/"):
        if part in (b"", b".", b"..") or len(part) > _MAX_PART:
            return "a path stays below its folder, without . and .., and its names are short"
    if not 0 <= entry.bits <= 0o777:
        return "it has other bits than those of reading, writing and executing"
    if entry.kind == LINK:
        if not entry.target or len(entry.target) > _MAX_PATH or b"\0" in entry.target:
            return "a link leads to a path of 1 to 4095 bytes"
    elif entry.target:
        return "only a link leads to another path"
    if entry.kind != FILE and (entry.size or entry.digests):
        return "only a file has bytes"
    if entry.size < 0 or len(entry.digests) != SHA_BYTES * count_pieces(entry.size):
        return "its digests do not fit its size"
    return None


def list_digests(entries: Iterable[Entry]) -> dict[bytes, int]:
    """Return the size of each piece by its digest, in the order of the entries."""
    found: dict[bytes, int] = {}
    for entry in entries:
        if entry.kind == FILE:
            if entry.size <= WHOLE_BYTES:
                if entry.size:
                    found.setdefault(entry.digests, entry.size)
            else:
                for digest, _, size in entry.list_pieces():
                    found.setdefault(digest, size)
    return found


def count_bytes(entries: Iterable[Entry]) -> tuple[int, int]:
    """Return the number of files in a manifest, and the sum of their bytes."""
    sizes = [entry.size for entry in entries if entry.kind == FILE]
    return len(sizes), sum(sizes)


def show_path(path: bytes) -> str:
    """Return a path as people read it, even where the path is no UTF-8."""
    return ascii(path.decode("utf-8", "surrogateescape")) if not _is_plain(path) else path.decode()


def _is_plain(path: bytes) -> bool:
    try:
        return path.decode().isprintable()
    except UnicodeDecodeError:
        return False
