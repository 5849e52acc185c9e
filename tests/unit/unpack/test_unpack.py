"""LAY-1…3: what is laid stays below its folder, is whole, and is put right without what is not its
own."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from holdfast.core.bundles.manifest import FILE, FOLDER, LINK, Entry
from holdfast.errors import ValidationError
from holdfast.unpack.unpack import Mark, Unpacker, check_piece, remove_unpacked

BYTES = {hashlib.sha256(d).digest(): d for d in (b"one", b"two", bytes(1 << 20) + b"end")}


def file(path: bytes, data: bytes, bits: int = 0o644) -> Entry:
    return Entry(path, FILE, bits, len(data), hashlib.sha256(data).digest() if data else b"")


TREE = [
    Entry(b"a", FOLDER, 0o755),
    Entry(b"a/b", FOLDER, 0o555),
    file(b"a/b/x", b"one"),
    file(b"a/run", b"two", 0o755),
    file(b"empty", b"", 0o600),
    Entry(b"l", LINK, target=b"../../outside"),
    file(b"n\xff", b"one"),
    file(b"sparse", bytes(1 << 20) + b"end"),
]


def lay(folder: Path, marks: dict[bytes, Mark] | None = None) -> tuple[dict[bytes, Mark], int]:
    layer = Unpacker(
        str(folder), marks or {}, lambda sha256, size: check_piece(sha256, BYTES[sha256])
    )
    return layer.unpack(TREE), layer.changed


def test_bytes_bits_links_and_names_arrive(tmp_path: Path) -> None:
    _, changed = lay(tmp_path)
    assert changed == 8
    assert (tmp_path / "a/b/x").read_bytes() == b"one"
    assert (tmp_path / "a/run").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "a/b").stat().st_mode & 0o777 == 0o555
    assert (tmp_path / "empty").stat().st_mode & 0o777 == 0o600
    assert os.readlink(tmp_path / "l") == "../../outside"
    assert Path(os.fsdecode(os.fsencode(tmp_path) + b"/n\xff")).read_bytes() == b"one"
    assert (tmp_path / "sparse").read_bytes() == bytes(1 << 20) + b"end"
    assert (tmp_path / "sparse").stat().st_blocks * 512 < 1 << 19
    os.chmod(tmp_path / "a/b", 0o755)


def test_only_its_own_files_are_put_right(tmp_path: Path) -> None:
    marks, _ = lay(tmp_path)
    before = (tmp_path / "a/b/x").stat().st_ino
    (tmp_path / "a/run").write_bytes(b"changed by the job")
    (tmp_path / "empty").unlink()
    (tmp_path / "out.pt").write_bytes(b"the job's")
    (tmp_path / "a/new").mkdir()
    marks, changed = lay(tmp_path, marks)
    assert changed == 2
    assert (tmp_path / "a/run").read_bytes() == b"two"
    assert (tmp_path / "out.pt").read_bytes() == b"the job's"
    assert (tmp_path / "a/new").is_dir()
    assert (tmp_path / "a/b/x").stat().st_ino == before
    assert lay(tmp_path, marks)[1] == 0
    os.chmod(tmp_path / "a/b", 0o755)


def test_no_link_that_a_job_left_is_followed(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (outside / "run").write_bytes(b"not ours")
    marks, _ = lay(work)
    os.rename(work / "a", work / "was")
    (work / "a").symlink_to(outside)
    (work / "empty").unlink()
    (work / "empty").symlink_to(outside / "run")
    lay(work, marks)
    assert (outside / "run").read_bytes() == b"not ours"
    assert os.listdir(outside) == ["run"]
    assert not (work / "a").is_symlink()
    assert (work / "a/run").read_bytes() == b"two"
    for name in ("a/b", "was/b"):
        os.chmod(work / name, 0o755)


def test_no_step_down_follows_a_link(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    outside.mkdir()
    (work / "a").symlink_to(outside)
    with pytest.raises(NotADirectoryError):
        Unpacker(str(work), {}, lambda sha256, size: BYTES[sha256]).unpack([file(b"a/x", b"one")])
    assert os.listdir(outside) == []


def test_what_a_job_made_in_the_way_is_moved_aside(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a file of the job")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/kept").write_bytes(b"kept")
    lay(tmp_path)
    assert (tmp_path / "a.moved-1").read_bytes() == b"a file of the job"
    assert (tmp_path / "empty.moved-1/kept").read_bytes() == b"kept"
    assert (tmp_path / "empty").read_bytes() == b""
    os.chmod(tmp_path / "a/b", 0o755)


def test_other_bytes_are_never_laid(tmp_path: Path) -> None:
    layer = Unpacker(str(tmp_path), {}, lambda sha256, size: check_piece(sha256, b"wrong"))
    with pytest.raises(ValidationError, match="other bytes"):
        layer.unpack([file(b"x", b"one")])
    assert not (tmp_path / "x").exists()


def test_what_is_as_it_was_laid_is_deleted_and_what_a_job_made_stays(tmp_path: Path) -> None:
    marks, _ = lay(tmp_path)
    (tmp_path / "a/b").chmod(0o755)
    (tmp_path / "a/run").write_bytes(b"changed by the job")
    (tmp_path / "out.pt").write_bytes(b"the job's")
    remove_unpacked(str(tmp_path), marks)
    assert sorted(os.listdir(tmp_path)) == ["a", "out.pt"]
    assert os.listdir(tmp_path / "a") == ["run"]


def test_nothing_behind_a_link_that_a_job_left_is_deleted(tmp_path: Path) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    work.mkdir()
    (outside / "b").mkdir(parents=True)
    marks, _ = lay(work)
    os.chmod(work / "a/b", 0o755)
    os.rename(work / "a/b/x", outside / "x")
    os.rename(work / "a", work / "was")
    (work / "a").symlink_to(outside)
    remove_unpacked(str(work), marks)
    assert sorted(os.listdir(outside)) == ["b", "x"]


def test_of_two_names_that_are_one_on_the_disk_the_second_is_refused(tmp_path: Path) -> None:
    """As on a Mac, whose disk ignores case; a second link to a file shows that here."""
    first, second = tmp_path / "READ", tmp_path / "Read"

    def read(sha256: bytes, size: int) -> bytes:
        if BYTES[sha256] == b"two":
            os.link(first, second)
        return BYTES[sha256]

    tree = [file(b"READ", b"one"), file(b"Re", b"two"), file(b"Read", b"two")]
    with pytest.raises(ValidationError, match="Read is not written, because it and READ are one"):
        Unpacker(str(tmp_path), {}, read).unpack(tree)
    assert first.read_bytes() == b"one"
