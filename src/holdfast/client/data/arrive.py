"""Write what arrives from a job, below one folder and nowhere else.

ARRIVE-1  Names are relative, without `..`, and each step down opens one folder without following
          links, so that nothing is written outside of the named folder, also where a link arrives or
          stands there already.
ARRIVE-2  Only files, folders and links are made. A link is made only where it stays below the folder
          also if the names beside it are links. Of a file's bits those of reading, writing and executing are
          set, and no other.
ARRIVE-3  A file is whole or is not there: it is written under another name, compared with its
          SHA-256, and renamed.
ARRIVE-4  Two names that are one on this disk, which ignores case or the form of letters as a Mac's
          does, overwrite each other never: the second is refused.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from holdfast.core.bundles.manifest import show_path
from holdfast.errors import ValidationError
from holdfast.work.files import keeps_inside

_STEP = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PIECE_BYTES = 1 << 20


def check_name(path: bytes) -> list[bytes]:
    """Return the steps of a name that arrived. Raises ValidationError for a name that does not stay
    below its folder (ARRIVE-1)."""
    parts = path.split(b"/")
    if not path or b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise ValidationError(f"{show_path(path)} is no name below a folder; it is not written")
    return parts


class Arrival:
    """The folder in which files arrive. The folder is made where it is missing. Raises OSError."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        os.makedirs(folder, exist_ok=True)
        self._root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._arrived: dict[tuple[int, int], bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._root)

    @contextlib.contextmanager
    def _at(self, path: bytes, *, make: bool = True) -> Iterator[tuple[int, bytes]]:
        """Open the folder in which a name stands. make: also make the folders on the way that are
        missing."""
        *above, name = check_name(path)
        at = os.dup(self._root)
        try:
            for part in above:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o755, dir_fd=at)
                try:
                    below = os.open(part, _STEP, dir_fd=at)
                except OSError as error:
                    if error.errno not in (errno.ENOTDIR, errno.ELOOP):  # the latter on macOS
                        raise
                    raise ValidationError(
                        f"{show_path(path)} is not written, because {show_path(part)} here is a link "
                        "or a file and no folder; move it away"
                    ) from None
                os.close(at)
                at = below
            yield at, name
        finally:
            os.close(at)

    def make_folder(self, path: bytes) -> None:
        """Make a folder. Raises OSError, ValidationError."""
        with self._at(path) as (at, name):
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o755, dir_fd=at)
            if not stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                raise ValidationError(
                    f"{show_path(path)} is not made, because a link or a file has this name here; "
                    "move it away"
                )

    def set_bits(self, path: bytes, bits: int) -> None:
        """Set the permission bits of a folder, after the files in it were written. Raises
        OSError."""
        with self._at(path, make=False) as (at, name):
            fd = os.open(name, _STEP, dir_fd=at)
            try:
                os.fchmod(fd, bits & 0o777 | 0o700)
            finally:
                os.close(fd)

    def make_link(self, path: bytes, target: bytes) -> bool:
        """Make a link; return False, and make none, where the link may lead out (ARRIVE-2). Raises
        OSError, ValidationError."""
        check_name(path)
        if not target or not keeps_inside(os.fsdecode(path), os.fsdecode(target)):
            return False
        with self._at(path) as (at, name):
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
                    return False
                os.unlink(name, dir_fd=at)
            os.symlink(target, name, dir_fd=at)
        return True

    def begin(self, path: bytes, mark: str) -> ArrivingFile:
        """Begin a file, or go on with a file of which a part with the same mark is here. mark: a
        name for the file's bytes, so that a part of other bytes is not gone on with. Raises
        OSError, ValidationError."""
        with self._at(path) as (at, name):
            part = b".%s.%s.part" % (name[:200], mark.encode()[:16])
            return ArrivingFile(os.dup(at), name, part, path, self._arrived)

    def has(self, path: bytes, size: int, sha256: str) -> bool:
        """Return whether a file with these bytes is here already. Raises ValidationError."""
        with contextlib.suppress(OSError), self._at(path, make=False) as (at, name):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
            try:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode) or found.st_size != size:
                    return False
                return _hash(fd, size) == sha256
            finally:
                os.close(fd)
        return False


class ArrivingFile:
    """A file whose bytes arrive (ARRIVE-3)."""

    def __init__(
        self,
        parent: int,
        name: bytes,
        part: bytes,
        path: bytes,
        arrived: dict[tuple[int, int], bytes],
    ) -> None:
        self._parent, self._name, self._part = parent, name, part
        self._path, self._arrived = path, arrived
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = os.open(part, flags, 0o600, dir_fd=parent)
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise ValidationError(f"{show_path(part)} here is no file; move it away")

    @property
    def size(self) -> int:
        """Return the number of bytes that are here."""
        return os.fstat(self._fd).st_size

    def cut(self, size: int) -> None:
        """Forget the bytes beyond `size`."""
        os.ftruncate(self._fd, size)

    def write(self, at: int, data: bytes) -> None:
        """Write a piece of the file at its offset. Raises OSError."""
        view = memoryview(data)
        while view:
            written = os.pwrite(self._fd, view, at)
            view, at = view[written:], at + written

    def hash(self, size: int) -> str:
        """Return the SHA-256 of the first `size` bytes of the file."""
        return _hash(self._fd, size)

    def hash_piece(self, at: int, size: int) -> str:
        """Return the SHA-256 of a piece of the file that is here."""
        digest, end = hashlib.sha256(), at + size
        while at < end and (piece := os.pread(self._fd, min(_PIECE_BYTES, end - at), at)):
            digest.update(piece)
            at += len(piece)
        return digest.hexdigest()

    def finish(self, bits: int) -> None:
        """Give the file its permission bits and its name. Raises OSError, ValidationError
        (ARRIVE-4)."""
        os.fchmod(self._fd, bits & 0o777)
        os.fsync(self._fd)
        with contextlib.suppress(FileNotFoundError):
            there = os.stat(self._name, dir_fd=self._parent, follow_symlinks=False)
            twin = self._arrived.get((there.st_dev, there.st_ino), self._path)
            if twin != self._path:
                self.drop()
                raise ValidationError(
                    f"{show_path(self._path)} is not written, because it and {show_path(twin)} are one "
                    "name on this disk; fetch one of them alone"
                )
        own = os.fstat(self._fd)
        self._arrived[own.st_dev, own.st_ino] = self._path
        os.rename(self._part, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        self.close()

    def drop(self) -> None:
        """Delete the part of the file that has arrived."""
        with contextlib.suppress(OSError):
            os.unlink(self._part, dir_fd=self._parent)
        self.close()

    def close(self) -> None:
        """Close the file, and leave its part for another try."""
        for fd in (self._fd, self._parent):
            with contextlib.suppress(OSError):
                os.close(fd)


def _hash(fd: int, size: int) -> str:
    digest, at = hashlib.sha256(), 0
    while at < size and (piece := os.pread(fd, min(_PIECE_BYTES, size - at), at)):
        digest.update(piece)
        at += len(piece)
    return digest.hexdigest()
