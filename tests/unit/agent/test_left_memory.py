"""Shared memory that ended programs left is found, and that of living ones is not (SHM-1)."""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.watch.left_memory import find_left_memory

MIB = 1 << 20
LIBC = ctypes.CDLL(None)
LIBC.mmap.restype, LIBC.mmap.argtypes = ctypes.c_void_p, [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long,
]  # fmt: skip
LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
HEAD = "key shmid perms size cpid lpid nattch uid gid cuid cgid atime dtime ctime rss swap"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="holdfast-tests-left-") as made:
        yield Path(made)


def write(path: Path, size: int = MIB) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"x" * size)
    return path


def map_alone(path: Path) -> ctypes.c_void_p:
    """Map a file without a descriptor that stays open, as the `mmap` of Python keeps one."""
    with path.open("rb") as file:
        view = LIBC.mmap(None, MIB, mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), 0)
    return ctypes.c_void_p(view)


def names(folder: Path, **bounds: float) -> dict[str, int]:
    found = find_left_memory(folder=folder, **bounds)
    return {Path(left.path).name: left.bytes for left in found if left.path}


def test_only_files_that_no_process_maps_or_holds_open_are_left(folder: Path) -> None:
    write(folder / "left")
    write(folder / "staged/a"), write(folder / "staged/b")
    write(folder / "read/a"), write(folder / "read/b")
    write(folder / "libpod_lock")
    view = map_alone(write(folder / "mapped"))
    with write(folder / "open").open("rb"), (folder / "read/a").open("rb"):
        assert names(folder) == {"left": MIB, "staged": 2 * MIB}
    assert LIBC.munmap(view, MIB) == 0
    assert set(names(folder)) == {"left", "staged", "read", "mapped", "open"}


def test_only_files_of_the_time_that_is_asked_for_are_left(folder: Path) -> None:
    write(folder / "left")
    now = time.time()
    assert not names(folder, since=now + 60)
    assert not names(folder, until=now - 60)
    assert names(folder, since=now - 60, until=now + 60)


@pytest.mark.parametrize(
    ("changes", "left"),
    [
        ({}, True),
        ({"nattch": 1}, False),
        ({"rss": 0}, False),
        ({"ctime": 100}, False),
        ({"cpid": 7}, False),  # its maker lives
    ],
)
def test_a_segment_is_left_that_nothing_is_attached_to(
    tmp_path: Path, changes: dict[str, int], left: bool
) -> None:
    (tmp_path / "shm").mkdir()
    (tmp_path / "proc/7").mkdir(parents=True)
    row = dict.fromkeys(HEAD.split(), 0) | {"shmid": 5, "cpid": 8, "ctime": 900, "rss": MIB}
    row |= {"uid": os.geteuid()} | changes
    write(tmp_path / "proc/sysvipc/shm", 0).write_text(
        f"{HEAD}\n{' '.join(map(str, row.values()))}\n"
    )
    found = find_left_memory(200.5, folder=tmp_path / "shm", proc=tmp_path / "proc")
    assert [(one.segment, one.bytes) for one in found] == ([(5, MIB)] if left else [])
