"""JOB on the command line: ids, their beginnings, names and `@last`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.stub import JOB, Answer, Stub, job_record

OTHER = "06ch2v8wq1m4kz7d9x3v"


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A state folder of this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "holdfast" / "last-jobs.json"


def answer_why(stub: Stub, job_id: str = JOB) -> None:
    reasons = {"job_id": job_id, "state": "running", "summary": f"this is {job_id}", "lines": []}
    stub.on(f"GET /v1/jobs/{job_id}/why", Answer(reasons))


def page(*jobs: Any) -> Answer:
    return Answer({"items": list(jobs), "next": None})


def test_a_whole_id_costs_no_call(stub: Stub) -> None:
    answer_why(stub)
    assert f"this is {JOB}" in stub.run("why", JOB).stdout
    assert len(stub.requests) == 1


@pytest.mark.parametrize("word", ["big-run", "06ch2v"])
def test_a_name_or_the_beginning_of_an_id(stub: Stub, word: str) -> None:
    answer_why(stub)
    stub.on("GET /v1/jobs", page(job_record(name="big-run")))
    done = stub.run("why", word)
    assert f"this is {JOB}" in done.stdout, done.stderr
    assert f"={word}" in stub.requests[0].path


def test_the_end_of_an_id_names_a_job_because_ids_of_one_hour_begin_alike(stub: Stub) -> None:
    answer_why(stub)
    stub.on("GET /v1/arrays", page())
    stub.on("GET /v1/jobs", page(), page(), page(job_record(id=OTHER), job_record()))
    done = stub.run("why", JOB[-4:])
    assert f"this is {JOB}" in done.stdout, done.stderr
    stub.on("GET /v1/jobs", page(), page(), page(job_record(id=OTHER), job_record()))
    assert "the end of its id" in stub.run("why", "zzzz").stderr


def test_several_jobs_are_listed_and_none_is_taken(stub: Stub) -> None:
    twins = [job_record(name="big run"), job_record(id=OTHER, name="big run", state="failed")]
    stub.on("GET /v1/jobs", page(*twins))
    done = stub.run("cancel", "big run")
    assert done.exit_code == 2
    assert "'big run' names several jobs" in done.stderr
    assert f"{OTHER}  failed     big run" in done.stderr
    assert JOB in done.stderr
    assert [request.method for request in stub.requests] == ["GET"]


def test_at_most_ten_candidates_are_listed(stub: Stub) -> None:
    many = [job_record(id=f"06ch2v8wq1m4kz7d9x{n:02d}") for n in range(11)]
    stub.on("GET /v1/jobs", page(*many))
    done = stub.run("logs", "echo!")
    assert done.stderr.count("06ch2v8wq1m4kz7d9x") == 10
    assert "and more" in done.stderr


def test_an_unknown_name_says_what_can_be_given(stub: Stub) -> None:
    stub.on("GET /v1/jobs", page())
    done = stub.run("show", "nothing")
    assert done.exit_code == 3
    assert "there is no job 'nothing'" in done.stderr
    assert "@last" in done.stderr


def test_last_is_the_job_that_was_submitted_from_here(stub: Stub, state: Path) -> None:
    stub.on("POST /v1/jobs", Answer(job_record(), 201))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record()))
    answer_why(stub)
    assert stub.run("submit", "--", "x").exit_code == 0
    assert json.loads(state.read_text()) == {stub.url: JOB}
    assert state.stat().st_mode & 0o777 == 0o600
    assert f"this is {JOB}" in stub.run("why", "@last").stdout


@pytest.mark.parametrize("kept", ["", "[]", '{"%s": "06ch2v8wq1m4kz7d9x3z"}', '{"%s": 7}'])
def test_last_is_the_newest_job_where_none_is_known(stub: Stub, state: Path, kept: str) -> None:
    if kept:
        state.parent.mkdir()
        state.write_text(kept.replace("%s", stub.url))
    stub.on("GET /v1/jobs", page(job_record(id=OTHER)))
    answer_why(stub, OTHER)
    assert f"this is {OTHER}" in stub.run("why", "@last").stdout
    assert any("project=default" in request.path for request in stub.requests)


def test_last_without_any_job(stub: Stub, state: Path) -> None:
    stub.on("GET /v1/jobs", page())
    done = stub.run("logs", "@last")
    assert done.exit_code == 3
    assert "@last: no job was submitted from here" in done.stderr


def test_a_state_file_that_cannot_be_written_breaks_nothing(stub: Stub, state: Path) -> None:
    state.parent.write_text("no folder")
    stub.on("POST /v1/jobs", Answer(job_record(), 201))
    done = stub.run("submit", "--", "x")
    assert (done.exit_code, done.stdout) == (0, JOB + "\n")
