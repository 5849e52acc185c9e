"""Folders of tests in memory, for a database of a test's own: making and deleting the thousand
files of one costs more on a disk than all that the test does with it."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PLACE = Path("/dev/shm")
_PREFIX = "holdfast-tests-"
_ROOM_BYTES = 4 << 30


@pytest.fixture(scope="session")
def memory_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in memory that ends with the session; on disk, where memory has too little room or
    runs no programs."""
    if not has_room(_PLACE):
        yield tmp_path_factory.mktemp("memory")
        return
    with lock(_PLACE):
        delete_left(_PLACE)
        home = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_PLACE))
        owner = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(owner, fcntl.LOCK_EX)
    yield home
    shutil.rmtree(home, ignore_errors=True)
    os.close(owner)


@pytest.fixture
def memory_path(memory_home: Path) -> Iterator[Path]:
    """A folder of `memory_home` for this test alone, deleted after it."""
    with tempfile.TemporaryDirectory(dir=memory_home, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def has_room(place: Path) -> bool:
    """True where programs run from it and some databases fit, in it and in the memory that is
    free."""
    try:
        room = os.statvfs(place)
    except OSError:
        return False
    lines = Path("/proc/meminfo").read_text().splitlines()
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    refused = room.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) or not os.access(place, os.W_OK)
    return not refused and min(room.f_bavail * room.f_frsize, free) >= _ROOM_BYTES


@contextmanager
def lock(place: Path) -> Iterator[None]:
    """Wait until no other session makes its folder there."""
    number = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(number, fcntl.LOCK_EX)
        yield
    finally:
        os.close(number)


def delete_left(place: Path) -> None:
    """Delete folders of sessions that were killed: no process holds their lock."""
    for folder in place.glob(f"{_PREFIX}*"):
        try:
            number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:
            continue  # another user's
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # a session that runs
        finally:
            os.close(number)
