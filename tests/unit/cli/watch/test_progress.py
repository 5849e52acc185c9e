"""Rates and times left, as a person reads them, and the line that shows them below the output."""

from __future__ import annotations

import os
import pty
import re
import sys
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.cli.command_io import CommandIO
from holdfast.cli.jobs.jobs import jobs_table
from holdfast.cli.live.progress import StepLine, say_estimate, say_rate
from holdfast.core.progress.pace import Estimate
from tests.unit.cli.stub import JOB, job_record

NOW = datetime.now(UTC)


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, ""), (1234.5, "1234/s"), (3.14, "3.1/s"), (0.5, "30/min"), (0.001, "3.6/h"), (1e-6, "0.0/h")],
)  # fmt: skip
def test_a_rate_is_written_in_the_unit_that_shows_it(rate: float | None, text: str) -> None:
    assert say_rate(Estimate(1, None, rate)) == text


def test_an_estimate_says_what_is_known() -> None:
    assert say_estimate(Estimate(120, 1000, 3.1, 284)) == "step 120/1000 (12%), 3.1/s, 4m44s left"
    assert say_estimate(Estimate(7)) == "step 7"


def running(**fields: object) -> dict[str, object]:
    begun = NOW - timedelta(seconds=100)
    return {
        "state": "running",
        "started_at": begun,
        "step": 50,
        "total": 100,
        "beat_at": NOW,
        "rate": 0.5,
    } | fields


def test_the_list_of_jobs_shows_the_time_left(eighty_columns: None) -> None:
    text = jobs_table([job_record(**running())])
    assert "LEFT" in text
    assert re.search(r"50/100  1m(3[89]|40)s ", text)  # one step's time at most has gone meanwhile
    assert "RATE" not in text
    assert "RATE" in jobs_table([job_record(**running())], wide=True)


def test_the_rate_is_what_the_agent_saw_and_none_is_made_up(eighty_columns: None) -> None:
    """A job may begin at a checkpoint's step, so its steps so far are not all its own."""
    assert "LEFT" not in jobs_table([job_record(**running(rate=None))])
    assert re.search(r"50/100  9s ", jobs_table([job_record(**running(rate=5.0))]))


def test_jobs_without_beats_have_no_such_columns() -> None:
    assert "LEFT" not in jobs_table([job_record(state="running", started_at=NOW)])


def test_the_line_never_stands_behind_the_beginning_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        line = StepLine(CommandIO(False), JOB)
        line.show_job(job_record(**running()))
        assert b"step 50/100" in os.read(master, 999)
        with line.output(b"half a line"):
            assert os.read(master, 999) == b"\r\x1b[K"
        line.show_job(job_record(**running(step=51)))
        with line.output(b" and its end\n"):
            pass
        line.show_job(job_record(**running(step=52)))
        assert os.read(master, 999).startswith(b"\r\x1b[Kstep 52/100")
    os.close(master)
