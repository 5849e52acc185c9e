"""`holdfast schedules`: what is sent, and what is shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.cli.stub import JOB, Answer, Stub, job_record


def record(**fields: Any) -> dict[str, Any]:
    return {
        "id": "06ch2v8wq1m4kz7d9x3s",
        "name": "nightly",
        "project": "default",
        "queue": "cpu",
        "spec": {"job": {"argv": ["./nightly.sh"]}, "cron": "0 3 * * *"},
        "anchor": "2026-01-01T00:00:00Z",
        "next_at": "2026-01-02T03:00:00Z",
        "last_outcome": "submitted",
        "last_job_id": JOB,
        "last_state": "running",
        "created_at": "2026-01-01T00:00:00Z",
        **fields,
    }


def test_a_schedule_is_made_of_a_job_and_times(stub: Stub) -> None:
    stub.on("PUT /v1/schedules/nightly", Answer(record()))
    words = ["--cron", "0 3 * * *", "--time-zone", "Europe/Berlin", "--overlap", "queue"]
    done = stub.run("schedules", "set", "nightly", *words, "--gpus", "1", "--", "run", "--fast")
    assert done.stdout.strip() == "nightly: next at 2026-01-02 03:00:00Z", done.stderr
    sent = json.loads(stub.requests[-1].body)
    assert (sent["cron"], sent["time_zone"], sent["overlap"]) == (
        "0 3 * * *",
        "Europe/Berlin",
        "queue",
    )
    assert (sent["job"]["argv"], sent["job"]["gpus"]) == (["run", "--fast"], 1)
    assert "idempotency_key" not in sent["job"]
    stub.run("schedules", "set", "nightly", "--every", "15m", "--", "run")
    assert json.loads(stub.requests[-1].body)["every_seconds"] == 900
    for wrong in ([], ["--every", "1h", "--cron", "* * * * *"], ["--every", "soon"]):
        refused = stub.run("schedules", "set", "nightly", *wrong, "--", "run")
        assert refused.exit_code == 2, wrong


def test_schedules_are_listed_and_shown(stub: Stub) -> None:
    stub.on("GET /v1/schedules", Answer({"items": [record()], "next": None}))
    stub.on("GET /v1/schedules/nightly", Answer(record()))
    run = {"due_at": "2026-01-01T03:00:00Z", "at": "2026-01-01T03:00:01Z", "outcome": "submitted"}
    stub.on(
        "GET /v1/schedules/nightly/runs", Answer({"items": [{**run, "job_id": JOB}], "next": None})
    )
    listed = stub.run("schedules", "list").stdout
    for word in ("nightly", "0 3 * * *", "2026-01-02 03:00", JOB, "running"):
        assert word in listed
    shown = stub.run("schedules", "show", "nightly").stdout
    assert "./nightly.sh" in shown
    assert "2026-01-01 03:00:00Z" in shown
    as_json = json.loads(stub.run("schedules", "show", "nightly", "--json").stdout)
    assert (as_json["schedule"]["name"], as_json["runs"][0]["job_id"]) == ("nightly", JOB)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (900, "every 15m"),
        (90, "every 1m30s"),
        (3600, "every 1h"),
        (5, "every 5s"),
        (86_400, "every 1d"),
    ],
)
def test_an_interval_has_no_empty_parts(stub: Stub, seconds: float, said: str) -> None:
    row = record(spec={"job": {"argv": ["x"]}, "every_seconds": seconds})
    stub.on("GET /v1/schedules", Answer({"items": [row], "next": None}))
    assert f"{said}  " in stub.run("schedules", "list").stdout


def test_times_are_told_in_the_schedules_zone(stub: Stub) -> None:
    told = {"times": ["2026-03-29T01:00:00Z"], "time_zone": "Europe/Berlin"}
    stub.on("GET /v1/schedules/nightly/next", Answer(told))
    done = stub.run("schedules", "next", "nightly", "1")
    assert done.stdout.strip() == "2026-03-29T03:00:00+02:00"
    assert "count=1" in stub.requests[-1].path


def test_pause_resume_run_and_delete(stub: Stub) -> None:
    path = "/v1/schedules/nightly"
    stub.on(
        f"POST {path}/pause",
        Answer(record(paused_at="2026-01-01T00:00:00Z", paused_reason="holidays")),
    )
    stub.on(f"POST {path}/resume", Answer(record()))
    stub.on(f"POST {path}/run", Answer(job_record(), 201))
    stub.on(f"DELETE {path}", Answer(b"", 204))
    assert "holidays" in stub.run("schedules", "pause", "nightly", "--reason", "holidays").stdout
    assert "next at" in stub.run("schedules", "resume", "nightly").stdout
    assert stub.run("schedules", "run-now", "nightly").stdout.strip() == JOB
    assert "deleted" in stub.run("schedules", "delete", "nightly").stdout
