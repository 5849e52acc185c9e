"""Arrays on the command line: one line in lists, named by a word, their members by an index."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.cli.jobs.arrays import SHOWN, list_some
from holdfast.wire.logs.lines import LogLine
from tests.unit.cli.stub import JOB, Answer, Stub, events, job_record

ARRAY = "06ch2v8wq1m4kz7d9x3s"


def record(**fields: Any) -> dict[str, Any]:
    counts = {"running": 50, "waiting": 940, "succeeded": 8, "failed": 2}
    return {
        "id": ARRAY,
        "name": "fit",
        "project": "default",
        "queue": "gpu",
        "state": "running",
        "reason": "10 of 1000 have ended, 2 of them failed; it runs 50 of its 50 at once",
        "spec": {"argv": ["train"]},
        "indices": "0-999",
        "size": 1000,
        "at_once": 50,
        "counts": counts,
        "active": 50,
        "failed": "3,17",
        "created_at": "2026-01-01T00:00:00Z",
        **fields,
    }


def page(*items: Any) -> Answer:
    return Answer({"items": list(items), "next": None})


def test_an_array_is_one_line_among_the_jobs(stub: Stub) -> None:
    stub.on("GET /v1/jobs", page(job_record(), job_record(id="06ch2v8wq1m4kz7d9x3a")))
    stub.on("GET /v1/arrays", page(record()))
    done = stub.run("jobs", "--wide")
    ids = [line.split()[0] for line in done.stdout.splitlines()[1:]]
    assert ids == [JOB, ARRAY, "06ch2v8wq1m4kz7d9x3a"], "newest first"
    line = next(line for line in done.stdout.splitlines() if line.startswith(ARRAY))
    assert "10/1000" in line
    assert "running 50, waiting 940, succeeded 8, failed 2" in line
    assert "array=none" in stub.requests[0].path


def test_members_are_listed_where_that_is_asked_for(stub: Stub) -> None:
    stub.on("GET /v1/jobs", page(job_record()))
    stub.run("jobs", "--indices")
    assert [("array=" in request.path, request.path[:8]) for request in stub.requests] == [
        (False, "/v1/jobs")
    ]
    stub.on(f"GET /v1/arrays/{ARRAY}", Answer(record()))
    stub.run("jobs", "--array", ARRAY, "--state", "failed")
    assert f"array={ARRAY}" in stub.requests[-1].path


def test_show_and_why_take_an_array(stub: Stub) -> None:
    stub.on(f"GET /v1/arrays/{ARRAY}", Answer(record()))
    stub.on("GET /v1/jobs", page(job_record(name="fit[3]", state="failed", array_index=3)))
    done = stub.run("show", ARRAY)
    assert done.exit_code == 0, done.stderr
    for word in ("10 of 1000", "failed 2", "3,17", "fit[3]", "0-999"):
        assert word in done.stdout
    assert f"holdfast show {ARRAY} --indices" in done.stderr
    assert "50 of its 50" in stub.run("why", ARRAY).stdout


def test_members_that_wait_hide_none_that_failed_or_run() -> None:
    """Twenty members are shown, of an array whose newest hundreds wait."""
    there = {"failed": 3, "running": 40, "queued": 500}

    def list_jobs(*, states: Sequence[str], **_: object) -> Iterator[Any]:
        return (
            SimpleNamespace(state=state, number=number)
            for state in states
            for number in range(there.get(state, 0))
        )

    client: Any = SimpleNamespace(jobs=list_jobs)
    array: Any = SimpleNamespace(id=ARRAY, counts=there)
    listed = Counter(str(job.state) for job in list_some(client, array))
    assert (listed["failed"], listed.total()) == (3, SHOWN)
    assert listed["running"] >= 8
    assert listed["queued"] >= 8
    there.update(failed=0, running=2, queued=0)
    assert [job.state for job in list_some(client, array)] == ["running", "running"]


def test_a_members_parameters_are_shown(stub: Stub) -> None:
    env = {"HOLDFAST_PARAM_LR": "0.1", "HOLDFAST_PARAM_SEED": "2", "OTHER": "x"}
    spec = {"argv": ["fit"], "env": env}
    stub.on("GET /v1/jobs", page(job_record(name="fit[3]", array_index=3, spec=spec)))
    assert "lr=0.1 seed=2" in stub.run("jobs", "--indices", "--wide").stdout


def test_a_member_is_named_by_the_name_and_the_index(stub: Stub) -> None:
    stub.on("GET /v1/arrays", page(record()))
    stub.on(f"GET /v1/jobs/{ARRAY}%5B7%5D", Answer(job_record(array_index=7)))
    reasons = {"job_id": JOB, "state": "waiting", "summary": "its turn", "lines": []}
    stub.on(f"GET /v1/jobs/{JOB}/why", Answer(reasons))
    done = stub.run("why", "fit[7]")
    assert "its turn" in done.stdout, done.stderr


def test_cancel_and_retry_take_an_array(stub: Stub) -> None:
    stub.on("GET /v1/jobs", page())
    stub.on("GET /v1/arrays", page(record()))
    stub.on(f"POST /v1/arrays/{ARRAY}/cancel", Answer(record(state="cancelled"), 202))
    stub.on(f"POST /v1/arrays/{ARRAY}/retry", Answer(record()))
    assert ARRAY in stub.run("cancel", "fit").stdout
    assert ARRAY in stub.run("retry", "fit").stdout
    refused = stub.run("retry", "--counted", "fit")
    assert f"{ARRAY}[N]" in refused.stderr


def test_submit_sends_indices_or_a_grid(stub: Stub, tmp_path: Path) -> None:
    stub.on("POST /v1/arrays", Answer(record(), 201))
    done = stub.run("submit", "--array", "0-999%50", "--", "train")
    assert done.stdout.strip() == ARRAY, done.stderr
    assert json.loads(stub.requests[-1].body)["array"] == "0-999%50"
    grid = tmp_path / "grid.toml"
    grid.write_text("[grid]\nlr = [1e-3, 1e-4]\n")
    stub.run("submit", "--sweep", str(grid), "--at-once", "2", "--", "train", "{lr}")
    body = json.loads(stub.requests[-1].body)
    assert (body["sweep"], body["at_once"]) == ({"grid": {"lr": [0.001, 0.0001]}}, 2)
    grid.write_text("[grid]\nlr = []\n")
    before = len(stub.requests)
    refused = stub.run("submit", "--sweep", str(grid), "--", "train")
    assert (refused.exit_code, len(stub.requests)) == (2, before)
    assert "is empty" in refused.stderr
    both = stub.run("submit", "--sweep", str(grid), "--array", "0-1", "--", "x")
    assert "not both" in both.stderr


def test_the_last_one_submitted_may_be_an_array(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    stub.on("GET /v1/jobs", page(job_record()))
    stub.on("POST /v1/arrays", Answer(record(), 201))
    stub.on(f"GET /v1/arrays/{ARRAY}", Answer(record()))
    stub.on(f"POST /v1/arrays/{ARRAY}/cancel", Answer(record()))
    assert stub.run("submit", "--array", "0-999%50", "--", "./fit.sh").stdout == f"{ARRAY}\n"
    assert ARRAY in stub.run("show", "@last").stdout
    assert ARRAY in stub.run("cancel", "@last").stdout
    assert f"name one of them, as {ARRAY}[0]" in stub.run("logs", "-f", "@last").stderr
    stub.on(f"GET /v1/jobs/{ARRAY}%5B7%5D", Answer(job_record(array_index=7)))
    reasons = {"job_id": JOB, "state": "waiting", "summary": "its turn", "lines": []}
    stub.on(f"GET /v1/jobs/{JOB}/why", Answer(reasons))
    assert "its turn" in stub.run("why", "@last[7]").stdout


@pytest.mark.parametrize("word", ["fit", ARRAY])
@pytest.mark.parametrize("command", [("logs", "-f"), ("attempts",)])
def test_what_an_array_has_not_is_asked_of_its_members(
    stub: Stub, command: tuple[str, ...], word: str
) -> None:
    stub.on("GET /v1/jobs", page())
    stub.on("GET /v1/arrays", page(record()))
    stub.on(f"GET /v1/arrays/{ARRAY}", Answer(record()))
    done = stub.run(*command, word)
    assert done.exit_code == 3
    assert f"'{word}' is an array of 1000 jobs; name one of them, as {word}[0]" in done.stderr


def test_the_logs_of_an_array_come_member_by_member(stub: Stub) -> None:
    stub.on("GET /v1/arrays", page(record()))
    stub.on(f"GET /v1/arrays/{ARRAY}", Answer(record()))
    members = [job_record(id=f"{n}" * 20, array_index=n, state="succeeded") for n in (10, 2)]
    stub.on("GET /v1/jobs", page(*members))
    for job in members:
        text = LogLine(
            attempt=1, rank=0, stream="stdout", offset=0, data=f"of {job.id[0]}".encode()
        )
        told = events(("log", text), ("end", job))
        stub.on(f"GET /v1/jobs/{job.id}/logs", Answer(told, kind="text/event-stream"))
        stub.on(f"GET /v1/jobs/{job.id}/logs/streams", page())
    done = stub.run("logs", ARRAY)
    assert (done.exit_code, done.stdout) == (0, "[ 2] of 2\n[10] of 1\n"), done.stderr
