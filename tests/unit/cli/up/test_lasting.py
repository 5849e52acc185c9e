"""An environment in a package cache is copied, so that cleaning the cache ends no `up`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from holdfast.cli.up import lasting


def make_environment(cache: Path, name: str) -> Path:
    prefix = cache / "archive" / name
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python").symlink_to(sys.executable)
    (prefix / "module.py").write_text("x = 1\n")
    (cache / "CACHEDIR.TAG").touch()
    return prefix


def test_the_copy_lives_on_after_the_cache_and_costs_no_room(tmp_path: Path) -> None:
    prefix = make_environment(tmp_path / "cache", "a")
    kept = lasting.copy_environment(prefix, tmp_path / "data")
    assert (kept / "module.py").samefile(prefix / "module.py")
    assert (kept / "bin" / "python").readlink() == Path(sys.executable)
    shutil.rmtree(tmp_path / "cache")
    assert (kept / "module.py").read_text() == "x = 1\n"


def test_the_copy_of_an_earlier_version_makes_room_and_a_copy_that_was_cut_short_is_made_anew(
    tmp_path: Path,
) -> None:
    home = tmp_path / "data"
    lasting.copy_environment(make_environment(tmp_path / "cache", "a"), home)
    (home / "part").mkdir()
    kept = lasting.copy_environment(make_environment(tmp_path / "cache", "b"), home)
    assert os.listdir(home) == ["b"]
    (kept / "mark").touch()
    assert lasting.copy_environment(tmp_path / "cache" / "archive" / "b", home) == kept
    assert (kept / "mark").exists()


def test_on_another_disk_the_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(18, "another disk")

    prefix = make_environment(tmp_path / "cache", "a")
    monkeypatch.setattr(os, "link", refuse)
    kept = lasting.copy_environment(prefix, tmp_path / "data")
    assert not (kept / "module.py").samefile(prefix / "module.py")
    assert (kept / "module.py").read_text() == "x = 1\n"


def test_an_environment_that_calls_itself_a_cache_is_in_none(tmp_path: Path) -> None:
    prefix = make_environment(tmp_path / "cache", "a")
    assert lasting.is_in_cache(prefix)
    own = tmp_path / "project" / ".venv"
    own.mkdir(parents=True)
    (own / "CACHEDIR.TAG").touch()
    assert not lasting.is_in_cache(own)


def test_up_runs_again_from_the_copy_and_tasks_find_another_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = make_environment(tmp_path / "cache", "a")
    ran: list[list[str]] = []
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "argv", ["holdfast", "up", "--port", "0"])
    monkeypatch.setattr(os, "execv", lambda path, words: ran.append([path, *words]))
    monkeypatch.setenv("PATH", f"{prefix}/bin:/usr/bin")
    said: list[str] = []
    lasting.leave_cache(tmp_path / "data", said.append)
    kept = tmp_path / "data" / "program" / "a"
    python = f"{kept}/bin/python"
    assert ran == [[python, python, "-P", "-m", "holdfast", "up", "--port", "0"]]
    assert (os.environ["PATH"], said) == ("/usr/bin", [])
    monkeypatch.setattr(sys, "prefix", str(kept))
    assert "needs it in its own environment" in (
        lasting.say_where_jobs_import(tmp_path / "data") or ""
    )
    lasting.leave_cache(tmp_path / "data", said.append)  # no second time
    assert len(ran) == 1


def test_a_full_disk_is_told_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = make_environment(tmp_path / "cache", "a")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    (tmp_path / "data").write_text("a file where the folder should be")
    said: list[str] = []
    lasting.leave_cache(tmp_path / "data", said.append)
    assert ["cannot be copied" in sentence for sentence in said] == [True]
    assert lasting.say_where_jobs_import(tmp_path / "data") is None
