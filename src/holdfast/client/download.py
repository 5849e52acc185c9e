"""A checkpoint's bytes in files, piece by piece: a checkpoint may be larger than memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from holdfast.errors import HoldfastError

PIECE_BYTES = 1 << 20


class Download:
    """The file that a checkpoint's bytes go into. It lies beside the wanted file until it is
    whole."""

    def __init__(self, to: str | os.PathLike[str], expected: str | None) -> None:
        self.path = Path(to).absolute()
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._expected = expected
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = open(self._part, "xb")  # noqa: SIM115 - closed by `end`

    def add(self, piece: bytes) -> None:
        """Write more of the checkpoint's bytes into the file. Raises OSError."""
        self._file.write(piece)
        self._hash.update(piece)

    def end(self, *, whole: bool) -> None:
        """Move the file to its place where its bytes are right, else remove it. Raises
        HoldfastError on a wrong checksum."""
        self._file.close()
        try:
            if whole and self._expected is not None and self._hash.hexdigest() != self._expected:
                raise HoldfastError(
                    "the bytes that came have another checksum than the checkpoint on record "
                    f"({self._expected})",
                    code="checksum_mismatch",
                )
            if whole:
                os.replace(self._part, self.path)
        finally:
            self._part.unlink(missing_ok=True)


@contextmanager
def receive(to: str | os.PathLike[str], headers: Mapping[str, str]) -> Iterator[Download]:
    """Open a download into `to`. At the block's end the file is there whole, or not at all."""
    download = Download(to, headers.get("holdfast-sha256"))
    whole = False
    try:
        yield download
        whole = True
    finally:
        download.end(whole=whole)


def describe_file(path: Path) -> dict[str, str]:
    """Return the headers of an upload of the file. Raises OSError."""
    return {"Content-Length": str(path.stat().st_size), "Content-Type": "application/octet-stream"}


def read_pieces(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes, a piece at a time. Raises OSError."""
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece
