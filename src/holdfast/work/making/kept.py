"""Keep environments on a host, hand them on to jobs, and delete those that no job needs.

KEPT-1  Each environment has a lock. Its maker holds it alone, each program that runs in it shares
        it, and only what no program holds is deleted: what is not ready, what was not used for
        `KEEP_DAYS`, and all but the `MOST` newest.
KEPT-2  An environment is handed on only as it was made. Permissions do not stop root, so the sizes,
        bits and times of all its files, of which a program cannot set the last, are compared each
        time; one that was changed is made anew, and the log says so.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from holdfast.work.making import say
from holdfast.work.making.copying import copy_file, remove_tree

KEEP_DAYS = 14.0
MOST = 16
OLD_DAYS = 30.0
READY = "ready.json"


def list_kept(root: Path, key: str) -> list[Path]:
    """Return the folders of the environments of a key, the newest first."""
    found = [
        (int(path.name.rpartition("-")[2]), path) for path in root.glob(f"{key}-*") if path.is_dir()
    ]
    return [path for _, path in sorted(found, reverse=True)]


def open_lock(root: Path, name: str) -> int:
    """Return a descriptor of a lock. Raises OSError."""
    return os.open(root / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def share(folder: Path) -> int | None:
    """Return a descriptor with a shared lock of an environment; None where it is being made or
    deleted. Raises OSError."""
    fd = open_lock(folder.parent, folder.name)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def read_ready(folder: Path) -> dict[str, Any] | None:
    """Return what is known of an environment; None where it is not ready."""
    try:
        told = json.loads((folder / READY).read_bytes())
    except (OSError, ValueError):
        return None
    return told if isinstance(told, dict) else None


def write_ready(folder: Path, told: dict[str, Any]) -> None:
    """Note that an environment is ready. Raises OSError."""
    part = folder / f"{READY}.new"
    part.write_text(json.dumps(told))
    os.rename(part, folder / READY)


def describe(folder: Path) -> tuple[str, int]:
    """Return a digest of the names, sizes, bits and times of an environment's files, and the bytes
    that they take on the disk (KEPT-2). Raises OSError."""
    digest, size, waiting = hashlib.sha256(), 0, [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if entry.name == READY:
                continue
            is_folder, status = (
                entry.is_dir(follow_symlinks=False),
                entry.stat(follow_symlinks=False),
            )
            size += status.st_blocks * 512
            times = f"{status.st_mtime_ns} {status.st_ctime_ns}"
            words = f"{entry.path} {status.st_mode} {status.st_size} {times}\n"
            digest.update(words.encode(errors="surrogateescape"))
            if is_folder:
                waiting.append(entry.path)
    return digest.hexdigest(), size


def hand_on(folder: Path, told: dict[str, Any], home: Path) -> None:
    """Give a job what its line left beside the code: links to environments, copies of all else.
    What the job has there already stays, but for files of its code that the line changed. Raises
    OSError."""
    source = folder / "src"
    for name in told["linked"]:
        _put(home / name, lambda path, name=name: path.symlink_to(source / name), again=True)
    for name in told["copied"]:
        again = name in told["changed"]
        _put(home / name, lambda path, name=name: _copy_own(source / name, path), again=again)


def _put(path: Path, write: Any, *, again: bool) -> None:
    there = os.path.lexists(path)
    if there and not (again and (path.is_symlink() or not path.is_dir())):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.holdfast-{os.getpid()}")
    part.unlink(missing_ok=True)
    write(part)
    os.rename(part, path)


def _copy_own(source: Path, target: Path) -> None:
    copy_file(source, target)
    if not target.is_symlink():
        os.chmod(target, target.stat().st_mode | 0o200)


def tell_age(folder: Path, told: dict[str, Any]) -> None:
    """Say in the log that an environment was made long ago; `why` finds this line
    (`core.bundles.code.find_old_environment`)."""
    days = (time.time() - told["made_at"]) / 86_400
    if days >= OLD_DAYS:
        say(f"the environment {folder.name} was made {days:.0f} days ago")


def discard(folder: Path) -> None:
    """Have an environment given to no job any more; it is deleted when no program uses it."""
    (folder / READY).unlink(missing_ok=True)


def prune(root: Path, present: Path) -> None:
    """Delete environments that no program uses (KEPT-1)."""
    before = time.time() - KEEP_DAYS * 86_400
    for number, (used_at, folder) in enumerate(_list_all(root)):
        is_new = used_at is not None and number < MOST and used_at >= before
        if folder == present or is_new:
            continue
        with contextlib.suppress(OSError), _own(root, folder.name):
            discard(folder)
            remove_tree(folder)
            if not folder.exists():
                (root / f"{folder.name}.lock").unlink()


def _list_all(root: Path) -> Sequence[tuple[float | None, Path]]:
    """Return all environments with the times of their last use, the newest first; None for one
    that is not ready."""
    found = list[tuple[float | None, Path]]()
    for folder in [path for path in root.iterdir() if path.is_dir()]:
        try:
            found.append(((folder / READY).stat().st_mtime, folder))
        except OSError:
            found.append((None, folder))
    return sorted(found, key=lambda each: each[0] or 0.0, reverse=True)


@contextlib.contextmanager
def _own(root: Path, name: str) -> Iterator[None]:
    """Hold a lock alone. Raises BlockingIOError where it is held."""
    fd = open_lock(root, name)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(fd)
