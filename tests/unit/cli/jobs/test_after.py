"""`--after`: names become ids, and the end that is wanted stays."""

from __future__ import annotations

import json

from tests.unit.cli.stub import JOB, Answer, Stub, job_record


def test_names_become_ids_and_their_ends_stay(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [job_record(name="prepare")], "next": None}))
    stub.on("POST /v1/jobs", Answer(job_record(), 201))
    done = stub.run("submit", "--after", "prepare:any", "--after", f"{JOB}", "--", "x")
    assert done.exit_code == 2, "the same job twice"
    done = stub.run("submit", "--after", "prepare:any", "--", "x")
    assert done.exit_code == 0, done.stderr
    (sent,) = [r for r in stub.requests if r.method == "POST"]
    assert json.loads(sent.body)["after"] == [f"{JOB}:any"]


def test_an_end_that_there_is_not_is_named(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [], "next": None}))
    done = stub.run("submit", "--after", "prepare:wrong", "--", "x")
    assert done.exit_code == 3
    assert "After a colon comes ok or any or failed" in done.stderr
