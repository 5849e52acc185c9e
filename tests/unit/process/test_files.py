"""FILE-1."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from holdfast.process.files import make_empty, write_atomic, write_new


def test_a_file_is_replaced_whole_and_is_its_owners_alone(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"old")
    write_atomic(path, b"new", durable=True)
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("laid", ["file", "link"])
def test_what_lies_under_the_name_of_the_part_is_not_written_into(
    tmp_path: Path, laid: str
) -> None:
    """A killed process leaves such a file; another user could lay one to read what is written."""
    part, others = tmp_path / f".f.{os.getpid()}.part", tmp_path / "others"
    others.write_bytes(b"")
    part.hardlink_to(others) if laid == "file" else part.symlink_to(others)
    write_atomic(tmp_path / "f", b"secret")
    assert others.read_bytes() == b""
    assert (tmp_path / "f").read_bytes() == b"secret"


def test_a_new_file_is_its_owners_alone_and_takes_the_place_of_an_old_one(tmp_path: Path) -> None:
    path = tmp_path / "f"
    for data in (b"first", b"second"):
        write_new(str(path), data)
        assert path.read_bytes() == data
        assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("laid", ["link", "hard link", "open", "pipe", "full"])
def test_an_empty_file_is_written_into_only_as_it_was_made(tmp_path: Path, laid: str) -> None:
    path, others = tmp_path / "f", tmp_path / "others"
    others.write_bytes(b"")
    make_empty(str(path))
    if laid == "open":
        path.chmod(0o644)
    elif laid == "full":
        path.write_bytes(b"a longer text than the next")
    else:
        path.unlink()
        if laid == "link":
            path.symlink_to(others)
        elif laid == "hard link":
            path.hardlink_to(others)
        else:
            os.mkfifo(path)
    write_new(str(path), b"secret")
    found = path.lstat()
    assert path.read_bytes() == b"secret"
    assert (found.st_mode, found.st_nlink) == (stat.S_IFREG | 0o600, 1)
    assert others.read_bytes() == b""


def test_a_file_that_was_made_empty_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    make_empty(str(path))
    made = path.stat().st_ino
    write_new(str(path), b"data")
    assert (path.stat().st_ino, path.read_bytes()) == (made, b"data")


def test_nothing_stays_of_a_new_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OSError, match="full"):
        write_new(f"{tmp_path}/f", b"data")
    assert not list(tmp_path.iterdir())
