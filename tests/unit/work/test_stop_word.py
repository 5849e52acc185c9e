"""The word to stop, as a job reads it."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from holdfast.work.stop_word import NAME, stopping


def leave(folder: Path, seconds: float, why: str = "preempted: preempted by job x") -> None:
    until = time.clock_gettime(time.CLOCK_BOOTTIME) + seconds
    (folder / NAME).write_text(json.dumps({"why": why, "until": until}))


def test_outside_holdfast_and_without_a_word_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_CHECKPOINT_OUT", raising=False)
    assert stopping() is None
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_OUT", str(tmp_path))
    assert stopping(0) is None


@pytest.mark.parametrize("torn", ["", "{", "[]", '{"why": "x"}', '{"why": "x", "until": "soon"}'])
def test_a_word_that_cannot_be_read_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: str
) -> None:
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_OUT", str(tmp_path))
    (tmp_path / NAME).write_text(torn)
    assert stopping(0) is None


def test_why_and_until_when(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_OUT", str(tmp_path))
    leave(tmp_path, 1000.0)
    told = stopping(0)
    assert told is not None
    assert (told.cause, told.why) == ("preempted", "preempted: preempted by job x")
    assert 900.0 < told.seconds_left <= 1000.0
    leave(tmp_path, -5.0)
    told = stopping(0)
    assert told is not None
    assert told.seconds_left == 0.0


def test_a_word_that_comes_after_the_signal_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_CHECKPOINT_OUT", str(tmp_path))
    late = threading.Timer(0.0, leave, (tmp_path, 60.0))
    late.start()
    assert stopping(60.0) is not None
    late.join()
