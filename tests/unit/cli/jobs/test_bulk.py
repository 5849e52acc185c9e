"""`cancel` and `retry` of the jobs that filters select."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import SupportsIndex

import msgspec
import pytest

from holdfast.cli.jobs import cancel
from holdfast.core.arrays.records import ArrayRecord
from holdfast.errors import Conflict, NotFound
from tests.unit.cli.stub import JOB, Answer, Stub, job_record, outcomes, sent

OTHER = "06ch2v8wq1m4kz7d9x3v"


@pytest.fixture
def two(stub: Stub) -> Stub:
    """A stub with two jobs that can be cancelled and retried."""
    stub.on("GET /v1/jobs", Answer({"items": [job_record(), job_record(id=OTHER)], "next": None}))
    for verb, state in (("cancel", "cancelled"), ("retry", "queued")):
        done = [job_record(id=job_id, state=state) for job_id in (JOB, OTHER)]
        stub.on(f"POST /v1/jobs/{verb}", outcomes(*done))
    return stub


def posts(stub: Stub) -> int:
    return sum(request.method == "POST" for request in stub.requests)


@pytest.mark.parametrize(("verb", "state"), [("cancel", "cancelled"), ("retry", "queued")])
def test_a_selection_is_counted_asked_about_and_acted_on(two: Stub, verb: str, state: str) -> None:
    done = two.run(verb, "--name", "sweep", "--label", "a=b", input="y\n")
    assert f"{verb.capitalize()} 2 jobs? [y/N]" in done.stderr
    assert (done.exit_code, posts(two)) == (0, 1), "one call for all"
    assert f"{OTHER}  {state}" in done.stdout
    assert f"{JOB}  {state}" in done.stdout
    # The list is newest first; jobs that are queued again keep the order of their submission.
    assert sent(two)["ids"] == ([JOB, OTHER] if verb == "cancel" else [OTHER, JOB])
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


def test_several_words_are_one_call(two: Stub) -> None:
    done = two.run("cancel", JOB, OTHER, JOB, "--hard", "--reason", "enough")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [JOB, OTHER, JOB]
    assert len(two.requests) == 1
    assert sent(two) == {"ids": [JOB, OTHER], "reason": "enough", "hard": True}
    two.run("retry", JOB, OTHER, "--counted", "--from-scratch")
    assert sent(two) == {"ids": [JOB, OTHER], "counted": True, "from_scratch": True}
    assert isinstance(json.loads(two.run("cancel", JOB, OTHER, "--json").stdout), list)


def test_a_word_among_several_may_be_an_array(stub: Stub) -> None:
    array = {"id": OTHER, "name": "fit", "project": "default", "queue": "cpu", "state": "cancelled",
             "reason": "", "spec": {"argv": ["x"]}, "indices": "0-1", "size": 2, "at_once": None,
             "counts": {}, "active": 0, "failed": "", "created_at": "2026-01-01T00:00:00Z"}  # fmt: skip
    record = msgspec.convert(array, ArrayRecord)
    stub.on(f"GET /v1/arrays/{OTHER}", Answer(record))
    stub.on("GET /v1/arrays", Answer({"items": [record], "next": None}))
    stub.on(f"POST /v1/arrays/{OTHER}/cancel", Answer(record))
    missing = NotFound(f"{OTHER}: there is no such job")
    stub.on("POST /v1/jobs/cancel", outcomes(missing, job_record(state="cancelled")))
    done = stub.run("cancel", OTHER, JOB)
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        [OTHER, "cancelled"],
        [JOB, "cancelled"],
    ], done.stderr
    assert done.exit_code == 0


def test_a_refused_job_holds_up_no_other_and_decides_the_exit_code(two: Stub) -> None:
    refused = [Conflict(f"{JOB}: it is running"), NotFound(f"{OTHER}: there is no such job")]
    two.on("POST /v1/jobs/retry", outcomes(*refused, job_record(id="3" * 20, state="queued")))
    done = two.run("retry", "--all", "--yes")
    assert done.exit_code == 4
    assert done.stdout.split()[:2] == ["3" * 20, "queued"]
    assert f"{OTHER}: there is no such job" in done.stderr
    assert f"{JOB}: it is running" in done.stderr


def many(stub: Stub, monkeypatch: pytest.MonkeyPatch, *pages: Answer) -> None:
    """Have the stub list two jobs, of which each is a page."""
    monkeypatch.setattr(cancel, "PAGE_JOBS", 1)
    stub.on("GET /v1/jobs", Answer({"items": [job_record(), job_record(id=OTHER)], "next": None}))
    stub.on("POST /v1/jobs/cancel", *pages)


def test_many_jobs_go_in_pages(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = [outcomes(job_record(id=job_id, state="cancelled")) for job_id in (JOB, OTHER)]
    many(stub, monkeypatch, *pages)
    done = stub.run("cancel", "--all", "--yes", "--json")
    assert [job["id"] for job in json.loads(done.stdout)] == [JOB, OTHER]
    assert (posts(stub), done.stderr) == (2, ""), "stderr is no terminal"


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, also where the tests were started in the background of a shell, which has
    it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_says_how_many_were_done(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupting(list[Answer]):
        def pop(self, place: SupportsIndex = -1, /) -> Answer:
            main = threading.main_thread().ident
            if len(self) == 2 and main is not None:  # the second page is asked for
                signal.pthread_kill(main, signal.SIGINT)
            return super().pop(place)

    many(stub, monkeypatch)
    pages = Interrupting([outcomes(job_record(state="cancelled"))] * 3)
    stub.answers["POST /v1/jobs/cancel"] = pages
    done = stub.run("cancel", "--all", "--yes")
    assert "ended early: 1 of 2 jobs cancelled; perhaps up to 1 more" in done.stderr
    assert done.exit_code != 0
    assert done.stdout.split()[:2] == [JOB, "cancelled"]


def test_a_controller_that_goes_away_leaves_what_was_done(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"status": 500, "code": "error", "detail": "it broke"}
    first = outcomes(job_record(state="cancelled"))
    many(stub, monkeypatch, first, Answer(gone, 500, "application/problem+json"))
    done = stub.run("cancel", "--all", "--yes", "--json")
    assert [job["id"] for job in json.loads(done.stdout)] == [JOB]
    assert "ended early: 1 of 2 jobs cancelled" in done.stderr
    assert done.exit_code != 0
