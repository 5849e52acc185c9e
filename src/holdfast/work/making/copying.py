"""Copy files so that the copy shares no byte that can change with the original: a reflink where the
file system has them, else a copy. Hard links are never made, because bits and writes would go
through them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from pathlib import Path

_FICLONE = 0x40049409


def can_clone(folder: Path) -> bool:
    """Return whether the file system of a folder has reflinks. Raises OSError."""
    one, two = folder / ".clone-1", folder / ".clone-2"
    try:
        one.write_bytes(b"x" * 4096)
        return _clone(one, two)
    finally:
        for path in (one, two):
            path.unlink(missing_ok=True)


def _clone(source: Path, target: Path) -> bool:
    with open(source, "rb") as old, open(target, "wb") as new:
        try:
            fcntl.ioctl(new.fileno(), _FICLONE, old.fileno())
        except OSError:
            return False
    return True


def copy_file(source: Path, target: Path) -> None:
    """Copy a file or a link with its bits and times. Raises OSError."""
    if source.is_symlink():
        target.symlink_to(os.readlink(source))
        return
    if not _clone(source, target):
        shutil.copyfile(source, target)
    shutil.copystat(source, target)


def copy_tree(source: Path, target: Path) -> None:
    """Copy a folder; links in it stay links. Raises OSError."""
    shutil.copytree(source, target, symlinks=True, copy_function=_copy, dirs_exist_ok=True)


def _copy(source: str, target: str) -> None:
    copy_file(Path(source), Path(target))


def own_file(path: Path) -> None:
    """Make a file share no hard link with others. Raises OSError."""
    own = path.with_name(f".{path.name}.own")
    copy_file(path, own)
    os.rename(own, path)


def remove_tree(folder: Path) -> None:
    """Delete a folder that may be read-only; what cannot be deleted stays."""
    for base, _, _ in os.walk(folder):
        with contextlib.suppress(OSError):
            os.chmod(base, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
