"""Remember the digests of the files of a folder that was sent, so that unchanged files are not read
again.

INDEX-1  A file is as it was if its device, number, size, mtime and ctime are, and if it did not
         change within `SETTLE_NS` before the index was written: a later change could fall into the
         same tick of the clock.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

import msgspec

SETTLE_NS = 2_000_000_000
Signature = tuple[int, int, int, int, int]


class Index(msgspec.Struct, array_like=True):
    """The index of a folder, which remembers the digests of its files. files: path → signature and
    digests. kept: server and project → the digest of the last bundle that was made there."""

    version: int = 1
    written_ns: int = 0
    files: dict[bytes, tuple[Signature, bytes]] = {}
    kept: dict[str, str] = {}

    def find(self, path: bytes, status: os.stat_result) -> bytes | None:
        """Return a file's digests if the file has not changed since (INDEX-1)."""
        known = self.files.get(path)
        if known is None or known[0] != sign(status):
            return None
        if max(status.st_mtime_ns, status.st_ctime_ns) > self.written_ns - SETTLE_NS:
            return None
        return known[1]


_decoder = msgspec.msgpack.Decoder(Index)


def sign(status: os.stat_result) -> Signature:
    """Return the numbers of a file's status that change when its bytes do."""
    times = status.st_mtime_ns, status.st_ctime_ns
    return status.st_dev, status.st_ino, status.st_size, *times


def find_place(root: bytes) -> Path:
    """Return the path of a folder's index, below the user's cache folder."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home, "holdfast", "code", hashlib.sha256(root).hexdigest()[:32])


def load_index(path: Path) -> Index:
    """Return a folder's index; an empty index where none is there that can be read."""
    try:
        found = _decoder.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return Index()
    return found if found.version == 1 else Index()


def save_index(path: Path, index: Index) -> None:
    """Write an index whole or not at all. Where the cache folder cannot be written, nothing is
    done."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            part.write_bytes(msgspec.msgpack.encode(index))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
