"""`ssh-config`: names, and the keys of sessions that run at the same time."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.sessions.ssh_config import read_name
from holdfast.cli.sessions.ssh_keys import hold_keys
from holdfast.errors import ValidationError


def test_a_hosts_name_names_a_job_and_a_rank() -> None:
    assert read_name("train.v2.holdfast") == ("train.v2", 0)
    assert read_name("rank3.06ch2v8w.holdfast") == ("06ch2v8w", 3)
    assert read_name("last.holdfast") == ("@last", 0)
    for bad in ("train", "../x.holdfast", "a b.holdfast", ".holdfast", "-x.holdfast"):
        with pytest.raises(ValidationError, match="names no job"):
            read_name(bad)


KEYGEN = """#!/bin/sh
while [ $# -gt 1 ]; do shift; done
echo "secret of $1 $$" >"$1"; echo "ssh-ed25519 AAAA$$ holdfast" >"$1.pub"
"""


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "ssh-keygen").write_text(KEYGEN)
    (tmp_path / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    return tmp_path / "ssh" / "job.holdfast"


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_that_ends_the_session_leaves_no_keys(
    keys: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """ssh sends one as soon as its connection is over, and it may come within the removal, too."""
    remove = shutil.rmtree

    def remove_late(*words: Any, **more: Any) -> None:
        if keys.exists():
            signal.raise_signal(number)
        remove(*words, **more)

    before = signal.getsignal(number)
    monkeypatch.setattr(shutil, "rmtree", remove_late)
    with pytest.raises(SystemExit) as ended, hold_keys(keys):
        signal.raise_signal(number)
    assert ended.value.code == 128 + number
    assert not keys.exists()
    assert signal.getsignal(number) == before


def test_the_first_session_makes_the_keys_and_the_last_removes_them(keys: Path) -> None:
    with hold_keys(keys) as first:
        assert keys.stat().st_mode & 0o77 == 0
        with hold_keys(keys) as second:
            assert second == first
        assert (keys / "user").exists()
        assert first.endswith(b"\n.\n")
    assert not keys.exists()
    with hold_keys(keys) as third:
        assert third != first


def test_a_machine_without_ssh_is_told_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(ValidationError, match="apt install openssh-client"),
        hold_keys(tmp_path / "k"),
    ):
        pass
