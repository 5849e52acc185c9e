"""Small private files that are whole or absent, whenever the process dies.

FILE-1  A file is written under another name and renamed, so a reader sees the old file or the new
        one, never a part.
- A bound file ends in the number of its own inode. A copy of the file has another inode, also
  where time and owner were copied, so a copied folder is told from a folder that was moved or
  mounted again.
"""

import os
from pathlib import Path

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW


def make_private_folder(path: Path) -> None:
    """Make a folder (0700) and its parents. Raises OSError."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_atomic(path: Path, data: bytes, *, durable: bool = False) -> None:
    """Replace `path` (0600) by `data` (FILE-1). Raises OSError, and then the old file is untouched.
    No other user can read the data at any moment.

    durable: True to survive a loss of power as well, at the price of a disk flush. A file that only
    has to survive kill -9 does without: after a boot it would mean nothing to the new incarnation.
    """
    _replace(path, data, durable=durable)


def write_first(path: str, data: bytes) -> None:
    """Write a file (0600) that no process reads before its writer has gone on, which costs a busy
    disk less than `write_atomic`. Raises OSError, and then no file is left."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        write_all(fd, data)
    except BaseException:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def write_bound(path: Path, word: str) -> None:
    """Replace the file at `path` by a bound file, which holds a word and the number of its own
    inode (FILE-1). Raises OSError."""
    _replace(path, word.encode(), durable=True, bound=True)


def read_bound(path: Path) -> tuple[str, bool]:
    """Return the word in a bound file, and whether the file is a copy of the one that was written.
    The word is empty where there is no file, or where the file is cut short. Raises OSError for a
    file that cannot be read."""
    words = (read_private(path) or b"").decode(errors="replace").split()
    if len(words) != 2:
        return "", False
    return words[0], words[1] != str(path.stat().st_ino)


def _replace(path: Path, data: bytes, *, durable: bool, bound: bool = False) -> None:
    part, fd = _open_part(path)
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


def _open_part(path: Path) -> tuple[Path, int]:
    """Open the file that becomes `path` when it is whole. Raises OSError."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        return part, os.open(part, _NEW, 0o600)
    except FileExistsError:  # left by a process that was killed, or laid by another user
        part.unlink()
        return part, os.open(part, _NEW, 0o600)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def read_private(path: Path) -> bytes | None:
    """Return a file's bytes, None where there is no file. Raises OSError for a file that cannot be
    read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
