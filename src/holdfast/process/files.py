"""Small private files that are whole or absent, whenever the process dies.

FILE-1  A file is written under another name and renamed, so a reader sees the old one or the new
        one, never a part.
FILE-2  A bound file ends in the number of its own inode. A copy of it has another, also where time
        and owner were copied, so that a copied folder is told from one that was moved or mounted
        again.
"""

import fcntl
import os
import signal
import stat
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_THERE = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW  # waits for no reader of a pipe
_PRIVATE = stat.S_IFREG | 0o600


def make_private_folder(path: Path) -> None:
    """Make a folder (0700) and its parents. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_atomic(
    path: Path, data: bytes, *, durable: bool = False, ready: Path | None = None
) -> None:
    """Replace `path` (0600) by `data` (FILE-1). Raises OSError, and then the old file is untouched;
    no other user can read the data at any moment.

    ready: a file that `make_empty` may have made beside it, to be written and renamed in place of a
    new one. durable: also survives a loss of power, at the price of a disk flush. A file that only has to
    survive kill -9 does without: after a boot it would mean nothing to the new incarnation.
    """
    _replace(path, data, durable=durable, ready=ready)


def write_bound(path: Path, word: str) -> None:
    """Replace `path` by a word that is bound to this file (FILE-2, FILE-1). Raises OSError."""
    _replace(path, word.encode(), durable=True, bound=True)


def read_bound(path: Path) -> tuple[str, bool]:
    """Return the word of a bound file, and whether the file is a copy. The word is empty where no
    file is, or where the file broke off. Raises OSError for a file that cannot be read."""
    words = (read_private(path) or b"").decode(errors="replace").split()
    if len(words) != 2:
        return "", False
    return words[0], words[1] != str(path.stat().st_ino)


def _replace(
    path: Path, data: bytes, *, durable: bool, ready: Path | None = None, bound: bool = False
) -> None:
    part, fd = _open_part(path, ready)
    try:
        try:
            write_all(fd, data + b" %d\n" % os.fstat(fd).st_ino if bound else data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(part, path)
    except OSError:
        part.unlink(missing_ok=True)
        raise
    if durable:
        folder_fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder_fd)
        finally:
            os.close(folder_fd)


def _open_part(path: Path, ready: Path | None) -> tuple[Path, int]:
    """Open the file that becomes `path` when it is whole. Raises OSError."""
    made = None if ready is None else _open_made(str(ready))
    if ready is not None and made is not None:
        return ready, made
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        return part, os.open(part, _NEW, 0o600)
    except FileExistsError:  # left by a process that was killed, or laid by another user
        part.unlink()
        return part, os.open(part, _NEW, 0o600)


def make_empty(path: str) -> None:
    """Make an empty file (0600), for `write_new` or `write_atomic` to write later. Raises OSError."""
    os.close(os.open(path, _NEW, 0o600))


def empty(path: str, *, alone: bool = True) -> bool:
    """Make a file as `make_empty` makes it, in place of deleting it and making another. Returns False,
    and leaves it as it is, unless it is private.

    alone: and unless nothing has it open, because a process that is left over would write into what
    comes next."""
    try:
        fd = os.open(path, _THERE)
    except OSError:
        return False
    try:
        found = os.fstat(fd)
        if (found.st_mode, found.st_nlink) != (_PRIVATE, 1):
            return False
        # The kernel refuses a write lease on a file that is open elsewhere. Should another process
        # open it before this one closes it, it waits, and the signal that tells of it is ignored.
        if alone:
            fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGURG)
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        if found.st_size:
            os.ftruncate(fd, 0)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def write_new(path: str, data: bytes) -> None:
    """Write a file (0600) that is mostly empty or not there yet, without FILE-1: after a kill a
    part of it may stand. Raises OSError, and then nothing does."""
    fd = _open_empty(path)
    if fd is None:
        write_atomic(Path(path), data)
        return
    try:
        write_all(fd, data)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def _open_empty(path: str) -> int | None:
    """Return a descriptor of a file that is new, or as `make_empty` made it; None for any other.
    Raises OSError."""
    try:
        return os.open(path, _NEW, 0o600)
    except FileExistsError:
        return _open_made(path)


def _open_made(path: str) -> int | None:
    """Return a descriptor of a file that is as `make_empty` made it; None for any other."""
    try:
        fd = os.open(path, _THERE)
    except OSError:
        return None
    found = os.fstat(fd)
    if (found.st_mode, found.st_nlink, found.st_size) == (_PRIVATE, 1, 0):
        return fd
    os.close(fd)
    return None


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_private(path: Path) -> bytes | None:
    """A file's bytes, None where there is none. Raises OSError for one that cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
