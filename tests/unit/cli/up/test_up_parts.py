"""When a part of `up` is started again, and how a leftover is told from a stranger."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.up.folder import DataFolder, end_process, read_start
from holdfast.cli.up.parts import Restarts, describe_exit
from holdfast.errors import Conflict
from tests.waits import wait_exit


def test_quick_deaths_wait_longer_and_are_told() -> None:
    restarts = Restarts()
    delays = []
    for _ in range(6):
        restarts.start(100.0)
        delays.append(restarts.die(101.0))
    assert delays[:3] == pytest.approx([0.1, 0.4, 1.6])
    assert max(delays) == 10.0
    assert Restarts(quick_deaths=4).keeps_dying


def test_a_long_life_starts_the_count_anew() -> None:
    restarts = Restarts(quick_deaths=7)
    restarts.start(100.0)
    assert restarts.die(1000.0) == pytest.approx(0.1)
    assert not restarts.keeps_dying


def test_the_same_words_twice_in_a_row_are_what_another_start_would_not_change() -> None:
    restarts = Restarts()
    seen = []
    for words in (
        "",
        "",
        "FATAL at 12:01 (pid 7)",
        "no room",
        "FATAL at 12:02 (pid 9)",
        "FATAL at 12:09 (pid 1)",
    ):
        restarts.start(100.0)
        restarts.die(101.0, words)
        seen.append(restarts.repeats)
    assert seen == [False, False, False, False, False, True]


def test_exits_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"


def test_a_stranger_under_the_same_pid_is_left_alone() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        said: list[str] = []
        end_process(process.pid, "another boot:1", "ending it", said.append)
        assert process.poll() is None
        assert said == []
        end_process(process.pid, read_start(process.pid), "ending it", said.append)
        assert wait_exit(process, 10) == -15
        assert said == ["ending it"]


def test_a_copied_folder_touches_no_process_of_the_original(tmp_path: Path) -> None:
    """UP-2: the record in a copied folder names the processes of the original."""
    original, copy = DataFolder(tmp_path / "one"), DataFolder(tmp_path / "two")
    original.prepare()
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with subprocess.Popen(command, cwd=original.path) as process:
        original.record_parts({"controller": process.pid})
        shutil.copytree(original.path, copy.path)
        with pytest.raises(Conflict, match=rf"a copy of {original.path}, whose controller runs"):
            copy.end_leftovers(lambda _: None)
        assert process.poll() is None
        moved = DataFolder(original.path.rename(tmp_path / "three"))
        moved.end_leftovers(lambda _: None)
        assert wait_exit(process, 10) == -15
    copy.end_leftovers(lambda _: None)


def test_one_up_per_folder(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path / "d"), DataFolder(tmp_path / "d")
    first.prepare()
    first.lock()
    first.publish("http://127.0.0.1:1")
    with pytest.raises(Conflict, match=rf"pid {os.getpid()}\) at http://127.0.0.1:1"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_what_to_type_depends_on_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "http://127.0.0.1:1"
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path)
    usual = DataFolder(Path("holdfast-data")).tell_how_to_reach(url)
    assert usual == "in another terminal, in this folder: holdfast run -- echo hello"
    monkeypatch.chdir(tmp_path / "below")
    assert f", in {tmp_path}: holdfast run" in DataFolder(
        tmp_path / "holdfast-data"
    ).tell_how_to_reach(url)
    other = DataFolder(tmp_path / "it's mine").tell_how_to_reach(url).splitlines()
    assert other[1].strip() == f"export HOLDFAST_URL={url}"
    assert "this folder" not in other[0]
    said = subprocess.run(
        ["bash", "-c", f"echo {other[2].strip().partition('=')[2]}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"{tmp_path}/it's mine/token" in said.stderr, "its name is quoted"


def test_logs_are_cut_and_kept(tmp_path: Path) -> None:
    folder = DataFolder(tmp_path / "d")
    folder.prepare()
    log = folder.log_file("controller")
    with log.open("ab") as writer:
        writer.write(b"x" * (9 << 20))
        writer.flush()
        folder.rotate_logs()
        writer.write(b"after\n")
    assert log.read_bytes() == b"after\n"
    assert log.with_name("controller.log.1").stat().st_size == 9 << 20
    for _ in range(5):
        log.write_bytes(b"y")
        folder.rotate_logs(at_start=True)
    assert sorted(p.name for p in folder.log_folder.iterdir()) == [
        f"controller.log.{n}" for n in (1, 2, 3)
    ]
