"""FILE-1."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from holdfast.process.files import write_atomic, write_first


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


def test_nothing_stays_of_a_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "the disk is full")

    write_atomic(tmp_path / "f", b"old")
    monkeypatch.setattr(os, "write", fill)
    with pytest.raises(OSError, match="full"):
        write_atomic(tmp_path / "f", b"data")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_first_file_is_whole_and_its_owners_alone_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also over what a killed process left under its name, but never through another's link."""
    path, others = tmp_path / "f", tmp_path / "others"
    for data in (b"longer data", b"data"):
        write_first(str(path), data)
        assert (path.read_bytes(), path.stat().st_mode & 0o777) == (data, 0o600)
    others.write_bytes(b"")
    path.unlink()
    path.symlink_to(others)
    with pytest.raises(OSError, match="symbolic links"):
        write_first(str(path), b"secret")
    assert others.read_bytes() == b""
    path.unlink()
    monkeypatch.setattr(os, "write", lambda fd, data: 1 // 0 if len(data) == 3 else 1)
    with pytest.raises(ZeroDivisionError):
        write_first(str(path), b"data")
    assert not path.exists()
