"""The table of `jobs`: its steps, and reasons that are never cut."""

from __future__ import annotations

import pytest

from holdfast.cli.jobs import jobs
from tests.unit.cli.stub import JOB, Answer, Stub, job_record

REASON = "waits for 8 GPUs on one host, of which the largest has 4; give --placement spread"


@pytest.fixture
def listing(stub: Stub) -> Stub:
    """A stub with one long job and one that has not begun."""
    rows = [
        job_record(name="n" * 40, reason=REASON, step=12, total=400),
        job_record(reason="", step=7),
        job_record(reason=""),
    ]
    stub.on("GET /v1/jobs", Answer({"items": rows, "next": None}))
    return stub


@pytest.mark.usefixtures("eighty_columns")
def test_a_reason_is_whole_in_eighty_columns(listing: Stub) -> None:
    done = listing.run("jobs")
    lines = done.stdout.splitlines()
    assert " ".join(line.strip() for line in lines[2:4]) == REASON
    assert lines[2].startswith("     waits")
    assert max(map(len, lines)) <= 80


def test_a_reason_takes_the_rest_of_a_wide_terminal(
    listing: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "columns", lambda: 120)
    head, first, *rest = listing.run("jobs").stdout.splitlines()
    at = head.index("REASON")
    assert first[at:].startswith("waits for 8")
    assert rest[0][:at].strip() == ""
    assert " ".join(line[at:] for line in (first, rest[0], rest[1]) if line[at:]) == REASON


def test_wide_is_one_line_for_each_job(listing: Stub) -> None:
    lines = listing.run("jobs", "--wide").stdout.splitlines()
    assert len(lines) == 4
    assert lines[1].endswith(REASON)
    assert "n" * 40 in lines[1]


def test_steps(listing: Stub) -> None:
    head, *lines = listing.run("jobs", "--wide").stdout.splitlines()
    at = head.index("STEP")
    assert [line[at:].split()[0] for line in lines] == ["12/400", "7", "-"]
    assert JOB in lines[0]


def test_a_queued_job_shows_when_it_should_start(stub: Stub) -> None:
    row = job_record(state="queued", reason="queued", queued_at="2026-01-01T00:00:00Z")
    stub.on("GET /v1/jobs", Answer({"items": [row], "next": None}))
    start = {"expected_start": "2020-01-01T00:00:00Z", "earliest_start": "2020-01-01T00:00:00Z"}
    stub.on("GET /v1/forecasts", Answer({"items": [{"job_id": JOB, "ahead": 3, **start}]}))
    line = stub.run("jobs", "--wide").stdout.splitlines()[1]
    assert line.endswith("starts in about 0s (0s to ?), 3 ahead")
