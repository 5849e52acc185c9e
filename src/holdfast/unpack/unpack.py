"""Lay the files of a bundle into a folder, and write those again that a job has changed.

LAY-1  Only names of the manifest are written, below the folder, and never through a link: each step
       down opens one folder without following links. A thing that a job left in the place of a
       folder or a file is moved aside, and not deleted; only a link is replaced.
LAY-2  A file is whole or is not there: it is written under another name, its bytes are compared
       with their digest, and it is renamed. Of two names that are one on this disk, as on a Mac's,
       the second is refused.
LAY-3  A later attempt writes again each file that has changed since it was laid, by the file's
       number, size and times, and leaves all else as the job left it.
"""

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence

import msgspec

from holdfast.core.bundles.manifest import FOLDER, LINK, Entry, show_path
from holdfast.errors import ValidationError

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = b".holdfast-new"
_ZEROS = bytes(1 << 16)
Mark = tuple[int, int, int, int]
ReadPiece = Callable[[bytes, int], bytes]


class Unpacked(msgspec.Struct, frozen=True, array_like=True):
    """The files that were laid into a folder. boot: the boot of the machine, because files that
    were not synced may be lost with it. attempt: the attempt for which they were laid. marks: path
    → the number, the size and the times of a file or link."""

    digest: str
    boot: str
    attempt: int
    marks: dict[bytes, Mark]


class Unpacker:
    """Lays one bundle into one folder. read_piece: a function that returns the bytes of a
    digest."""

    def __init__(self, folder: str, marks: dict[bytes, Mark], read_piece: ReadPiece) -> None:
        self._root = os.open(folder, _OPEN)
        self._marks = marks
        self._read = read_piece
        self._at: list[tuple[bytes, int]] = []  # the folders down to the present one, open
        self._written: dict[int, bytes] = {}  # number of a file → its path
        self.changed = 0

    def unpack(self, entries: Sequence[Entry]) -> dict[bytes, Mark]:
        """Lay all entries, sorted by path, and return their marks. Raises OSError, ValidationError,
        and the errors of `read_piece`."""
        marks: dict[bytes, Mark] = {}
        closed = list[Entry]()
        try:
            for entry in entries:
                above, _, name = entry.path.rpartition(b"/")
                parent = self._go_to(above)
                if entry.kind == FOLDER:
                    self._lay_folder(parent, name)
                    closed.append(entry)
                else:
                    marks[entry.path] = self._lay_one(parent, name, entry)
            for entry in reversed(closed):  # a folder's own bits last: it may be read-only
                os.fchmod(self._go_to(entry.path), entry.bits)
        finally:
            self._leave(0)
            os.close(self._root)
        return marks

    def _go_to(self, path: bytes) -> int:
        parts = path.split(b"/") if path else []
        depth = 0
        while depth < min(len(parts), len(self._at)) and self._at[depth][0] == parts[depth]:
            depth += 1
        self._leave(depth)
        for name in parts[depth:]:
            above = self._at[-1][1] if self._at else self._root
            self._at.append((name, os.open(name, _OPEN, dir_fd=above)))
        return self._at[-1][1] if self._at else self._root

    def _leave(self, depth: int) -> None:
        while len(self._at) > depth:
            os.close(self._at.pop()[1])

    def _lay_folder(self, parent: int, name: bytes) -> None:
        found = _look(parent, name)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            _clear(parent, name, found)
            found = None
        if found is None:
            os.mkdir(name, 0o700, dir_fd=parent)
            self.changed += 1
        elif found.st_mode & 0o700 != 0o700:
            os.chmod(name, stat.S_IMODE(found.st_mode) | 0o700, dir_fd=parent)

    def _lay_one(self, parent: int, name: bytes, entry: Entry) -> Mark:
        found = _look(parent, name)
        if found is not None:
            mark = _mark(found)
            if mark == self._marks.get(entry.path):
                return mark
            if stat.S_ISDIR(found.st_mode):
                _clear(parent, name, found)
            elif (twin := self._written.get(found.st_ino)) is not None:
                raise ValidationError(
                    f"{show_path(entry.path)} is not written, because it and {show_path(twin)} are "
                    "one name on this disk"
                )
        with contextlib.suppress(FileNotFoundError):
            os.unlink(_NEW, dir_fd=parent)
        if entry.kind == LINK:
            os.symlink(entry.target, _NEW, dir_fd=parent)
        else:
            self._write(parent, entry)
        os.rename(_NEW, name, src_dir_fd=parent, dst_dir_fd=parent)
        self.changed += 1
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        self._written[status.st_ino] = entry.path
        return _mark(status)

    def _write(self, parent: int, entry: Entry) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(_NEW, flags, 0o600, dir_fd=parent)
        try:
            for sha256, at, size in entry.list_pieces():
                data = self._read(sha256, size)
                for start, part in _filled(data):
                    os.pwrite(fd, part, at + start)
            os.ftruncate(fd, entry.size)
            os.fchmod(fd, entry.bits)
        finally:
            os.close(fd)


def remove_unpacked(folder: str, marks: dict[bytes, Mark]) -> None:
    """Delete the files that were laid into a folder and have not changed since, and the folders
    that are empty then. Raises OSError."""
    root = os.open(folder, _OPEN)
    try:
        for path, mark in marks.items():
            with contextlib.suppress(OSError), _open_above(root, path) as (parent, name):
                if _mark(os.stat(name, dir_fd=parent, follow_symlinks=False)) == mark:
                    os.unlink(name, dir_fd=parent)
        above = {path.rpartition(b"/")[0] for path in marks}
        for path in sorted(above, reverse=True):
            while path:
                try:
                    with _open_above(root, path) as (parent, name):
                        os.rmdir(name, dir_fd=parent)
                except OSError:
                    break
                path = path.rpartition(b"/")[0]
    finally:
        os.close(root)


@contextlib.contextmanager
def _open_above(root: int, path: bytes) -> Iterator[tuple[int, bytes]]:
    """Open the folder in which a name stands, through no link. Raises OSError."""
    *above, name = path.split(b"/")
    at = os.dup(root)
    try:
        for part in above:
            below = os.open(part, _OPEN, dir_fd=at)
            os.close(at)
            at = below
        yield at, name
    finally:
        os.close(at)


def _filled(data: bytes) -> Iterator[tuple[int, bytes | memoryview]]:
    """Yield the parts of a piece that are not all zeros, because a sparse file stays sparse."""
    if len(data) < len(_ZEROS) or not data.startswith(_ZEROS[:512]):
        yield 0, data
        return
    view = memoryview(data)
    for start in range(0, len(data), len(_ZEROS)):
        part = view[start : start + len(_ZEROS)]
        if part != _ZEROS[: len(part)]:
            yield start, part


def check_piece(sha256: bytes, data: bytes) -> bytes:
    """Return a piece, after a check that its bytes have this digest. Raises ValidationError where
    they do not."""
    if hashlib.sha256(data).digest() != sha256:
        raise ValidationError(
            f"other bytes came than those of {sha256.hex()}", code="checksum_mismatch"
        )
    return data


def _look(parent: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _mark(found: os.stat_result) -> Mark:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _clear(parent: int, name: bytes, found: os.stat_result) -> None:
    """Make room for the entry that the manifest has under a name (LAY-1)."""
    if stat.S_ISLNK(found.st_mode):
        os.unlink(name, dir_fd=parent)
        return
    for number in range(1, 1000):
        aside = name + b".moved-%d" % number
        if _look(parent, aside) is None:
            os.rename(name, aside, src_dir_fd=parent, dst_dir_fd=parent)
            return
    raise OSError(f"{show_path(name)} stands in the way, and a thousand were moved aside")
