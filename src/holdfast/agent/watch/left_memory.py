"""Find shared memory that ended programs left behind: files in /dev/shm, and SysV segments.

Such memory counts for no process and stays until the host starts anew. It is told and never
removed, because native tasks share /dev/shm with everything of their user; that of a container of
its own goes with the container.

SHM-1  Memory counts as left only where no process that this one may see maps it or holds it open,
        and where all processes could be looked at in time.
"""

import asyncio
import contextlib
import logging
import math
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from holdfast.agent.offload import run_aside
from holdfast.agent.tasks.task import AgentTask
from holdfast.core.doctor.left_memory import LeftMemory, is_told, name_removal, say_left_memory
from holdfast.process.syscalls import read_boottime

log = logging.getLogger("holdfast.agent.watch.left_memory")

FOLDER, PROC = Path("/dev/shm"), Path("/proc")
# Podman keeps its locks there, also while it does not run; PostgreSQL removes its own as it starts.
_KEPT = ("libpod_", "PostgreSQL.")
_LOOK_SECONDS = 3.0
_MAX_FILES = 10_000
_SLACK_SECONDS = 0.05  # the kernel dates files by a clock that moves in ticks


async def tell_left_memory(task: AgentTask, folder: Path = FOLDER) -> list[str]:
    """Return a sentence about the shared memory that was made while a task ran, and that no process
    uses after its end."""
    if not task.started_at:
        return []
    since = time.time() - (read_boottime() - task.started_at) - _SLACK_SECONDS
    try:
        if not _was_changed(since, folder):
            return []
        async with asyncio.timeout(_LOOK_SECONDS):
            found = await run_aside(partial(find_left_memory, since, folder=folder))
    except (OSError, TimeoutError) as error:
        log.warning(f"shared memory could not be looked at: {error!r}", extra=task.about())
        return []
    if not is_told(found):
        return []
    return [
        f"programs that ran at its time have left {say_left_memory(found)}; this memory stays "
        f"until you remove it; unless another job needs it: {name_removal(found)}"
    ]


def find_left_memory(
    since: float = 0.0, until: float = math.inf, folder: Path = FOLDER, proc: Path = PROC
) -> list[LeftMemory]:
    """Return the memory that was last written between two instants (Unix time) and that no process
    uses (SHM-1): this user's, or for root everyone's. Raises OSError, and TimeoutError."""
    entries = [
        (path, files)
        for path in folder.iterdir()
        if not path.name.startswith(_KEPT) and (files := _read_files(path))
    ]
    own = [
        (path, files)
        for path, files in entries
        if all(_is_ours(file.st_uid) for file in files.values())
        and since <= max(file.st_ctime for file in files.values()) <= until
    ]
    names = {name for _, files in own for name in files}
    numbers = {(file.st_dev, file.st_ino) for _, files in own for file in files.values()}
    used_names, used_numbers = _find_used(names, numbers, proc) if own else (set(), set())
    left = [
        LeftMemory(path=str(path), bytes=sum(file.st_blocks * 512 for file in files.values()))
        for path, files in own
        if used_names.isdisjoint(files)
        and used_numbers.isdisjoint((file.st_dev, file.st_ino) for file in files.values())
    ]
    return [*left, *_find_segments(since, proc)]


def _was_changed(since: float, folder: Path) -> bool:
    """Return whether anything may have been made since an instant. This costs next to nothing."""
    return folder.stat().st_mtime >= since or any(_find_segments(since, PROC))


def _is_ours(uid: int) -> bool:
    return os.geteuid() in (0, uid)


def _read_files(top: Path) -> dict[str, os.stat_result]:
    """Return name → status of the regular file at `top`, or of those in the folder there; nothing
    for a folder of too many to look at them all."""
    found: dict[str, os.stat_result] = {}
    paths = [top]
    while paths:
        path = paths.pop()
        if len(found) >= _MAX_FILES:
            return {}
        try:
            if path.is_symlink():
                continue
            if path.is_dir():
                paths += path.iterdir()
            elif path.is_file():
                found[str(path.relative_to(top.parent))] = path.stat()
        except OSError:
            continue  # it is gone, or may not be read
    return found


def _find_used(
    names: set[str], numbers: set[tuple[int, int]], proc: Path
) -> tuple[set[str], set[tuple[int, int]]]:
    """Return those of the files that processes hold open, by name, and map, by device and inode."""
    by_last: dict[str, list[str]] = {}  # the path before it is another's in other namespaces
    for name in names:
        by_last.setdefault(name.rpartition("/")[2], []).append(name)
    devices = {f"{os.major(dev):02x}:{os.minor(dev):02x}".encode(): dev for dev, _ in numbers}
    mapped = re.compile(rb" (" + b"|".join(map(re.escape, devices)) + rb") (\d+) ")
    held: set[str] = set()
    used: set[tuple[int, int]] = set()
    give_up_at = time.monotonic() + _LOOK_SECONDS
    for process in proc.iterdir():
        if not process.name.isdigit():
            continue
        if time.monotonic() > give_up_at:
            raise TimeoutError("there are too many processes")
        with contextlib.suppress(OSError):  # it is gone, or another user's
            for device, number in mapped.findall((process / "maps").read_bytes()):
                used.add((devices[device], int(number)))
            for opened in os.listdir(process / "fd"):
                with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                    link = os.readlink(process / "fd" / opened).removesuffix(" (deleted)")
                    alike = by_last.get(link.rpartition("/")[2], ())
                    held.update(name for name in alike if link.endswith(f"/{name}"))
    return held, used


def _find_segments(since: float, proc: Path) -> Iterator[LeftMemory]:
    """Yield the SysV segments that no process is attached to and whose maker is gone."""
    try:
        head, *rows = (proc / "sysvipc/shm").read_text().splitlines()
    except (OSError, ValueError):
        return  # this kernel has none
    for row in rows:
        segment = dict(zip(head.split(), map(int, row.split()), strict=False))
        kept = segment["rss"] + segment["swap"]
        if segment["nattch"] or not kept or segment["ctime"] < int(since):
            continue
        if _is_ours(segment["uid"]) and not (proc / str(segment["cpid"])).exists():
            yield LeftMemory(segment=segment["shmid"], bytes=kept)
