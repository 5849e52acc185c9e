"""`wait`: what it waits for, and the exit code that says how it ended."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client.synchronous import Client
from holdfast.errors import JobFailed
from tests.unit.cli.stub import JOB, Answer, Stub, job_record

OTHER = "06ch2vb3t0k5nn2r8y1a"
NAMES = {JOB: "one", OTHER: "two"}


def ends(stub: Stub, job_id: str, *states: str) -> None:
    """Make the job be in these states, one after the other."""
    made = [Answer(job_record(id=job_id, state=state, reason=f"it {state}")) for state in states]
    stub.on(f"GET /v1/jobs/{job_id}", *made)


@pytest.mark.parametrize(
    ("states", "words", "code"),
    [
        (("succeeded", "succeeded"), (), 0), (("succeeded", "failed"), (), 1), (("cancelled", "succeeded"), (), 1),
        (("succeeded", "running"), ("--any",), 0), (("running", "failed"), ("--any",), 1),
        (("running", "succeeded"), ("--timeout", "0.05"), 124), (("running", "failed"), ("--timeout", "0.05"), 124),
        (("running", "queued"), ("--any", "--timeout", "0.05"), 124), (("succeeded", "running"), ("--any", "--timeout", "9"), 0),
    ],
)  # fmt: skip
def test_the_exit_code_says_how_the_jobs_ended(
    stub: Stub, states: tuple[str, str], words: tuple[str, ...], code: int
) -> None:
    for job_id, state in zip(NAMES, states, strict=True):
        ends(stub, job_id, "running", state)
    done = stub.run("wait", *NAMES, *words)
    assert done.exit_code == code, done.output
    if code == 124:
        last = dict(zip(NAMES, states, strict=True))
        open_ = [(job, state) for job, state in last.items() if state in ("running", "queued")]
        said = ", ".join(f"{job} is still {state}" for job, state in open_)
        assert done.stderr == f"holdfast: after 0.05 s {said}\n", "no object, no errno"


def test_an_unknown_job_is_code_3_before_anything_is_waited_for(stub: Stub) -> None:
    ends(stub, JOB, "running")
    assert stub.run("wait", JOB, OTHER).exit_code == 3
    assert stub.run("wait", JOB, "no-such-name").exit_code == 3


def test_an_array_and_a_run_are_waited_for_too(stub: Stub) -> None:
    array: dict[str, Any] = {
        "id": JOB, "name": "a", "project": "default", "queue": "cpu", "state": "running", "reason": "", "size": 2,
        "spec": {"argv": ["true"]}, "indices": "0-1", "counts": {}, "created_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    run: dict[str, Any] = {
        "id": OTHER, "name": "w", "project": "default", "state": "succeeded", "reason": "", "on_failure": "continue",
        "nodes": 1, "unended": 0, "labels": {}, "created_at": "2026-01-01T00:00:00Z", "counts": {},
    }  # fmt: skip
    stub.on(
        f"GET /v1/arrays/{JOB}", Answer(array), Answer(array), Answer(array | {"state": "failed"})
    )
    stub.on(f"GET /v1/workflows/{OTHER}", Answer(run))
    done = stub.run("wait", JOB, OTHER, "--json")
    assert done.exit_code == 1, done.output
    assert f'"id": "{OTHER}"' in done.stdout
    assert '"state": "failed"' in done.stdout


def test_a_job_that_is_named_twice_is_asked_for_once(stub: Stub) -> None:
    ends(stub, JOB, "succeeded")
    done = stub.run("wait", JOB, JOB)
    assert done.stdout.count(JOB) == 1


def test_the_client_waits_for_all_or_for_the_first(stub: Stub) -> None:
    ends(stub, JOB, "running", "running", "failed")
    ends(stub, OTHER, "succeeded")
    with Client(stub.url, "secret") as client:
        first = client.wait_many([JOB, OTHER], first=True)
        assert [job.state.value for job in first] == ["running", "succeeded"]
        every = client.wait_many([JOB, OTHER])
        assert [job.state.value for job in every] == ["failed", "succeeded"]
        with pytest.raises(JobFailed, match="it failed"):
            client.wait_many([JOB, OTHER], check=True)
        ends(stub, JOB, "running")
        with pytest.raises(TimeoutError, match=f"{JOB} is still running"):
            client.wait_many([JOB, OTHER], 0.01)
