"""`cancel` and `retry` of the jobs that filters select."""

from __future__ import annotations

import json

import pytest

from tests.unit.cli.stub import JOB, Answer, Stub, job_record

OTHER = "06ch2v8wq1m4kz7d9x3v"


@pytest.fixture
def two(stub: Stub) -> Stub:
    """A stub with two jobs that can be cancelled and retried."""
    stub.on("GET /v1/jobs", Answer({"items": [job_record(), job_record(id=OTHER)], "next": None}))
    for job_id in (JOB, OTHER):
        stub.on(f"POST /v1/jobs/{job_id}/cancel", Answer(job_record(id=job_id, state="cancelled")))
        stub.on(f"POST /v1/jobs/{job_id}/retry", Answer(job_record(id=job_id, state="queued")))
    return stub


def posts(stub: Stub) -> int:
    return sum(request.method == "POST" for request in stub.requests)


@pytest.mark.parametrize(("verb", "state"), [("cancel", "cancelled"), ("retry", "queued")])
def test_a_selection_is_counted_asked_about_and_acted_on(two: Stub, verb: str, state: str) -> None:
    done = two.run(verb, "--name", "sweep", "--label", "a=b", input="y\n")
    assert f"{verb.capitalize()} 2 jobs? [y/N]" in done.stderr
    assert (done.exit_code, posts(two)) == (0, 2)
    assert f"{OTHER}  {state}" in done.stdout
    assert "name=sweep" in two.requests[0].path
    assert "label=a%3Db" in two.requests[0].path
    assert ("state=failed" in two.requests[0].path) == (verb == "retry")
    assert ("state=running" in two.requests[0].path) == (verb == "cancel")


@pytest.mark.parametrize("answer", ["n\n", "\n", ""])
def test_no_answer_and_no_change_nothing(two: Stub, answer: str) -> None:
    done = two.run("cancel", "--all", input=answer)
    assert (done.exit_code, posts(two)) == (2, 0)
    assert "--help" not in done.stderr, "no word was wrong"


def test_scripts_do_not_get_the_question(two: Stub) -> None:
    done = two.run("cancel", "--state", "queued", "--yes", "--json")
    assert [job["id"] for job in json.loads(done.stdout)] == [JOB, OTHER]
    assert "[y/N]" not in done.stderr
    assert "state=queued" in two.requests[0].path
    assert "state=running" not in two.requests[0].path


def test_an_empty_selection(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [], "next": None}))
    done = stub.run("retry", "--all")
    assert (done.exit_code, done.stdout) == (0, "no such jobs\n")
    assert json.loads(stub.run("retry", "--all", "--json").stdout) == []


def test_words_and_filters_do_not_mix_and_one_of_them_is_needed(two: Stub) -> None:
    for words in (["cancel"], ["cancel", JOB, "--all"], ["retry", "--yes"]):
        assert two.run(*words).exit_code == 2
    refused = two.run("cancel", "--state", "failed")
    assert "'running'" in refused.stderr
    assert two.requests == []
