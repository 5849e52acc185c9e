"""Copies between here and a task: resumed, compared, and written below the named folder alone."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.data.channel import FilesRefused
from holdfast.client.data.copy import Copier
from holdfast.errors import NotFound, Unavailable, ValidationError


class Program:
    """The program that serves the files, on pipes that may break after some bytes."""

    def __init__(
        self, folder: Path, break_after: float = float("inf"), under: tuple[str, ...] = ()
    ) -> None:
        self.left = break_after
        self.process = subprocess.Popen(
            [*under, sys.executable, "-I", "-m", "holdfast.work.files", "task", "0"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            bufsize=0,
        )

    def _count(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            self.close()
            raise Unavailable("the link was cut")

    def write(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self._count(len(data))
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def receive(self) -> bytes:
        assert self.process.stdout is not None
        data = os.read(self.process.stdout.fileno(), 1 << 16)
        self._count(len(data))
        return data

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait()


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "task"
    folder.mkdir()
    return folder


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


def make_copier(task: Path) -> Copier:
    return Copier(lambda: Program(task))


def list_tree(folder: Path) -> dict[str, bytes | str | None]:
    found: dict[str, bytes | str | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"-> {os.readlink(path)}"
        else:
            found[name] = path.read_bytes() if path.is_file() else None
    return found


def test_a_file_a_folder_and_a_glob_come_here(task: Path, here: Path) -> None:
    (task / "out/deep").mkdir(parents=True)
    (task / "out/model.pt").write_bytes(b"model")
    (task / "out/model.pt").chmod(0o750)
    (task / "out/deep/a.txt").write_bytes(b"")
    (task / "out/b.txt").write_bytes(b"b")
    make_copier(task).fetch(["out/model.pt"], f"{here}/")
    assert stat.S_IMODE((here / "model.pt").stat().st_mode) == 0o750
    make_copier(task).fetch(["out/model.pt"], str(here / "best.pt"))
    assert (here / "best.pt").read_bytes() == b"model"
    make_copier(task).fetch(["out"], str(here / "copy"))
    assert list_tree(here / "copy") == list_tree(task / "out")
    make_copier(task).fetch(["out"], str(here / "copy"))  # as `cp`: the folder is there, so into it
    assert list_tree(here / "copy/out") == list_tree(task / "out")
    make_copier(task).fetch(["out/*.txt"], str(here / "texts"))
    assert list_tree(here / "texts") == {"b.txt": b"b"}
    make_copier(task).fetch([str(task / "out/b.txt")], str(here / "absolute"))
    assert (here / "absolute").read_bytes() == b"b"
    for missing in ("out/gone", "out/*.gone"):
        with pytest.raises(NotFound, match="out/"):
            make_copier(task).fetch([missing], str(here))


def test_a_name_that_is_there_is_no_pattern(task: Path, here: Path) -> None:
    (task / "run[1]").mkdir()
    (task / "run[1]/a").write_bytes(b"a")
    for name in ("run[1].pt", "run1.pt", "what?", "whats"):
        (task / name).write_bytes(name.encode())
    make_copier(task).fetch(["run[1].pt"], str(here / "one.pt"))
    assert (here / "one.pt").read_bytes() == b"run[1].pt"
    make_copier(task).fetch(["run[1]", "what?"], str(here / "two"))
    assert list_tree(here / "two") == {"run[1]": None, "run[1]/a": b"a", "what?": b"what?"}
    make_copier(task).fetch(["run[12].pt"], str(here / "three"))
    assert list_tree(here / "three") == {"run1.pt": b"run1.pt"}
    for bad in ("[z-a]", "x[!]y", "[9-0]*"):
        with pytest.raises(ValidationError, match="is not there, and it is no pattern: "):
            make_copier(task).fetch([bad], str(here))


def test_a_folder_that_cannot_be_read_is_not_passed_over(
    task: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "tree/closed").mkdir(parents=True)
    (here / "tree/a").write_bytes(b"a")
    scan = os.scandir

    def refuse(path: str) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="tree/closed"):
        make_copier(task).send([str(here / "tree")], "there")
    monkeypatch.undo()
    assert list_tree(task) == {}, "nothing is half written"


def test_files_and_folders_go_there(task: Path, here: Path) -> None:
    (here / "src/deep").mkdir(parents=True)
    (here / "src/deep/run.sh").write_bytes(b"#!/bin/sh\n")
    (here / "src/deep/run.sh").chmod(0o755)
    (here / "one").write_bytes(b"1")
    make_copier(task).send([str(here / "one")], "two")
    assert (task / "two").read_bytes() == b"1"
    make_copier(task).send([str(here / "src")], "code")
    assert list_tree(task / "code") == list_tree(here / "src")
    assert stat.S_IMODE((task / "code/deep/run.sh").stat().st_mode) == 0o755
    make_copier(task).send([str(here / "src"), str(here / "one")], "code")
    assert list_tree(task / "code/src") == list_tree(here / "src")
    make_copier(task).send([str(here / "one")], f"{task}/code/")
    assert (task / "code/one").read_bytes() == b"1"


@pytest.mark.parametrize("way", ["fetch", "send"])
def test_a_copy_that_is_cut_often_ends_right_and_sends_little_twice(
    task: Path, here: Path, way: str
) -> None:
    """COPY-1, COPY-2. At a thousandth of the size the part that is sent again is the same for each
    cut, so it is counted in bytes of the window."""
    size, cuts = 48 << 20, 12
    source, target = (task, here) if way == "fetch" else (here, task)
    (source / "big").write_bytes(random.Random(7).randbytes(size))
    chance = random.Random(3)
    left = [chance.uniform(0.2, 1.8) * size / cuts for _ in range(cuts)]

    def connect() -> Program:
        return Program(task, left.pop() if left else float("inf"))

    copier = Copier(connect)
    if way == "fetch":
        done = copier.fetch(["big"], f"{here}/")
    else:
        done = copier.send([str(here / "big")], "big")
    assert done.files == 1
    assert done.breaks >= cuts / 2
    hashes = {hashlib.sha256((f / "big").read_bytes()).hexdigest() for f in (task, here)}
    assert len(hashes) == 1
    assert sorted(os.listdir(target)) == ["big"], "a part was left"
    again = copier.carried - size
    assert again <= (done.breaks + 1) * (2 << 20) + (1 << 20), f"{again} bytes were sent again"


def test_a_copy_whose_command_was_killed_goes_on_with_the_next(task: Path, here: Path) -> None:
    (task / "big").write_bytes(os.urandom(8 << 20))
    cut = Copier(lambda: Program(task, 6 << 20), patience_seconds=0.0)
    with pytest.raises(Unavailable):
        cut.fetch(["big"], f"{here}/")
    copier = make_copier(task)
    copier.fetch(["big"], f"{here}/")
    assert copier.carried < (5 << 20)
    assert (here / "big").read_bytes() == (task / "big").read_bytes()


def test_a_source_that_changes_is_begun_anew(task: Path, here: Path) -> None:
    (task / "big").write_bytes(b"a" * (4 << 20))
    copier = make_copier(task)
    changed: list[int] = []

    def change(progress: object) -> None:
        if not changed:
            changed.append(1)
            (task / "big").write_bytes(b"b" * (5 << 20))

    copier._tell = change
    copier.fetch(["big"], f"{here}/")
    assert (here / "big").read_bytes() == b"b" * (5 << 20)


# ---- what arrives on a laptop (COPY-3, ARRIVE-1…3)


class Evil:
    """A program that answers with names of its choice."""

    def __init__(self, entries: list[dict[str, object]]) -> None:
        from holdfast.work.files import make_frame

        self._answers = iter(
            [make_frame({"entries": entries, "left": []})]
            + [
                make_frame({"size": 4, "sign": [1, 1, 1]}, b"evil"),
                make_frame({"sha256": hashlib.sha256(b"evil").hexdigest()}),
            ]
            * len(entries)
        )

    def write(self, data: bytes) -> None:
        pass

    def receive(self) -> bytes:
        return next(self._answers)

    def close(self) -> None:
        pass


def entry(path: str, kind: str = "file", **more: object) -> dict[str, object]:
    return {"path": path, "kind": kind, "bits": 0o644, "size": 4, "sign": [1, 1, 1], **more}


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "outside"
    folder.mkdir()
    yield folder
    assert sorted(os.listdir(tmp_path)) == ["here", "outside"], "it wrote beside the folder"
    assert os.listdir(folder) == [], "it wrote outside"


@pytest.mark.parametrize(
    "name", ["out/../../outside/x", "/outside/x", "out/./x", "out//x", "out/\0"]
)
def test_no_name_that_arrives_leads_out(here: Path, outside: Path, name: str) -> None:
    names = [entry("out", "folder"), entry(name)]
    with pytest.raises(ValidationError, match="no name below a folder"):
        Copier(lambda: Evil(names)).fetch(["out"], f"{here}/")


def test_nothing_is_written_through_a_link_that_arrives(here: Path, outside: Path) -> None:
    names = [
        entry("out", "folder"),
        entry("out/away", "link", target=str(outside)),
        entry("out/up", "link", target="../../outside"),
        entry("out/crooked", "link", target="deep/../../../outside"),
        entry("out/inside", "link", target="deep"),
    ]
    copier = Copier(lambda: Evil(names))
    copier.fetch(["out"], f"{here}/")
    assert os.listdir(here / "out") == ["inside"]
    assert len(copier.progress.left) == 3
    names = [entry("out", "folder"), entry("out/inside/x")]
    with pytest.raises(ValidationError, match="is a link"):
        Copier(lambda: Evil(names)).fetch(["out"], f"{here}/")


def test_nothing_is_written_through_a_link_that_stands_there(here: Path, outside: Path) -> None:
    (here / "out").symlink_to(outside)
    names = [entry("out", "folder"), entry("out/x")]
    with pytest.raises(ValidationError, match="a link or a file"):
        Copier(lambda: Evil(names)).fetch(["out"], f"{here}/")
    (here / "x").symlink_to(outside / "x")
    Copier(lambda: Evil([entry("x")])).fetch(["x"], f"{here}/")
    assert (here / "x").read_bytes() == b"evil"
    assert not (here / "x").is_symlink()


def test_no_bit_beyond_reading_writing_and_executing_arrives(here: Path, outside: Path) -> None:
    Copier(lambda: Evil([entry("x", bits=0o7755)])).fetch(["x"], f"{here}/")
    assert stat.S_IMODE((here / "x").stat().st_mode) == 0o755


def test_devices_and_fifos_are_left_where_they_are(task: Path, here: Path) -> None:
    (task / "out").mkdir()
    os.mkfifo(task / "out/fifo")
    (task / "out/file").write_bytes(b"x")
    copier = make_copier(task)
    copier.fetch(["out"], f"{here}/")
    assert os.listdir(here / "out") == ["file"]
    assert copier.progress.left == [("out/fifo", "a device, socket or fifo")]


def test_a_full_disk_in_the_task_is_told_with_the_file_and_the_side(task: Path, here: Path) -> None:
    """A limit on the size of files stands for the disk."""
    (here / "model.pt").write_bytes(bytes(3 << 20))
    full = Copier(lambda: Program(task, under=("sh", "-c", 'ulimit -f 2500; exec "$0" "$@"')))
    words = f"{here}/model.pt cannot be written in the task, to out.pt: File too large; what has"
    with pytest.raises(FilesRefused, match=words):
        full.send([str(here / "model.pt")], "out.pt")
    full.close()
    assert not (task / "out.pt").exists()
    make_copier(task).send([str(here / "model.pt")], "out.pt")
    assert (task / "out.pt").read_bytes() == bytes(3 << 20)
