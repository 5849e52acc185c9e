"""The notice that the controller does not answer."""

from __future__ import annotations

import threading
import time

import pytest

from holdfast.cli import waiting
from tests.unit.cli.stub import JOB, Answer, Stub, job_record, outcomes

NOTICE = "waiting for the controller…"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the notice come early."""
    monkeypatch.setattr(waiting, "NOTICE_SECONDS", 0.1)


def test_a_slow_answer_is_told_once(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(dict[str, list[Answer]]):
        def get(self, key: str, default: object = None) -> list[Answer]:  # type: ignore[override]  # the stub asks so
            time.sleep(0.4)
            if key.startswith("GET"):
                return [Answer({"items": [job_record()], "next": None})]
            return [outcomes(job_record(state="cancelled"))]

    monkeypatch.setattr(stub, "answers", Slow())
    done = stub.run("cancel", "--all", "--yes")
    assert len(stub.requests) == 2
    assert done.exit_code == 0, done.stderr
    assert done.stderr.count(NOTICE) == 1
    assert NOTICE not in done.stdout


def test_a_controller_that_is_away_is_told_once(stub: Stub) -> None:
    done = stub.run("why", JOB, "--url", "http://127.0.0.1:9")
    assert done.exit_code == 6
    assert done.stderr.count(NOTICE) == 1


def test_a_quick_answer_leaves_no_notice_behind(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "NOTICE_SECONDS", 300.0)  # no answer is quick on a busy machine
    stub.on(f"POST /v1/jobs/{JOB}/cancel", Answer(job_record(state="cancelled")))
    assert NOTICE not in stub.run("cancel", JOB).stderr
    timers = [t for t in threading.enumerate() if isinstance(t, threading.Timer)]
    assert not [
        t for t in timers if t.interval == waiting.NOTICE_SECONDS and not t.finished.is_set()
    ]
