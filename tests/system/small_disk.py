"""A small filesystem that tests fill to the last byte."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


class SmallDisk:
    """A filesystem that can be filled to the last byte."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fill(self) -> None:
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while True:
                        ballast.write(b"x" * size)
        assert os.statvfs(self.path).f_bavail == 0, "the disk is not full: this tests nothing"

    def free(self) -> None:
        (self.path / "ballast").unlink()


@contextlib.contextmanager
def mount_small_disk(folder: Path, size: str) -> Iterator[SmallDisk]:
    """Mount a filesystem of that size in a new folder `disk`; skip the test where that may not be."""
    path = folder / "disk"
    path.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    if subprocess.run(words, capture_output=True, check=False).returncode != 0:
        pytest.skip("no filesystem can be mounted here")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with mount_small_disk(tmp_path, "8m") as found:
        yield found
