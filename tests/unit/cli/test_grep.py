"""`holdfast grep`: lines with their places, and what was searched."""

from __future__ import annotations

import json
from typing import Any

from holdfast.cli.endings import EXIT_FAILED
from holdfast.wire.logs.search import LogFound, LogSearchEnd
from tests.unit.cli.stub import JOB, Answer, Stub, events, job_record


def found(text: str, offset: int = 0, **fields: Any) -> LogFound:
    plain: dict[str, Any] = {"job": JOB, "attempt": 1, "rank": 0, "stream": "stdout"}
    return LogFound(**{**plain, "offset": offset, "text": text, **fields})


def serve(stub: Stub, *lines: LogFound, **end: Any) -> None:
    plain: dict[str, Any] = {
        "matches": sum(line.match for line in lines), "jobs": 1, "streams": 2, "kept_bytes": 3 << 20,
        "read_bytes": 1 << 16, "read_chunks": 1, "missing_bytes": 0,
    }  # fmt: skip
    body = events(*(("found", line) for line in lines), ("end", LogSearchEnd(**{**plain, **end})))
    stub.on("GET /v1/logs", Answer(body, kind="text/event-stream"))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record()))


def test_lines_come_with_their_places(stub: Stub) -> None:
    serve(
        stub,
        found("before", 0, match=False),
        found("NCCL timeout", 7, start=0, end=4),
        found("Killed \x1b]0;x\x07", 900, rank=17, stream="stderr", cut=10_000_000),
    )
    done = stub.run("grep", "-i", "-C", "1", "NCCL|Killed", JOB, "--since", "2h", "--max", "50")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{JOB}-1-0-stdout-before",
        f"{JOB}:1:0:stdout:NCCL timeout",
        f"{JOB}:1:17:stderr:Killed \ufffd]0;x\ufffd … (at least 10000000 bytes of this line are not shown)",
    ]
    assert "3M are kept, of which 64K were read" in done.stderr
    path = stub.requests[-1].path
    for word in (f"job={JOB}", "ignore_case=1", "context=1", "max=50", "since="):
        assert word in path


def test_nothing_found_is_exit_code_one_and_more_is_said(stub: Stub) -> None:
    serve(stub, missing_bytes=5 << 20, stopped="time")
    done = stub.run("grep", "-F", "x[", "--project", "vision")
    assert (done.exit_code, done.stdout) == (EXIT_FAILED, "")
    assert "project=vision" in stub.requests[-1].path
    assert "fixed=1" in stub.requests[-1].path
    assert "ran out of time" in done.stderr
    assert "were not searched, because they are not kept (log_keep_mb)" in done.stderr
    serve(stub, found("a"), stopped="max")
    assert "the search ended at --max" in stub.run("grep", "a").stderr


def test_json_is_a_line_for_each(stub: Stub) -> None:
    serve(stub, found("a", start=0, end=1))
    lines = [json.loads(line) for line in stub.run("grep", "a", "--json").stdout.splitlines()]
    assert [line.get("text", line.get("matches")) for line in lines] == ["a", 1]


def test_what_cannot_be_searched_together_is_refused(stub: Stub) -> None:
    serve(stub)
    done = stub.run("grep", "a", JOB, "--project", "x")
    assert done.exit_code == 2
    assert "--project goes without JOB" in done.stderr


def test_error_lines_of_ranks_that_are_alike_are_one_line(stub: Stub) -> None:
    group = {"text": "RuntimeError: NCCL timeout", "ranks": 2043, "lines": 2043, "first_rank": 17,
             "first_at": "2026-03-04T03:12:07.221Z"}  # fmt: skip
    stub.on(f"GET /v1/jobs/{JOB}/errors", Answer({"items": [group] * 7, "next": None}))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record(state="failed", tasks=2048)))
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": [], "next": None}))
    stub.on(f"GET /v1/jobs/{JOB}/tasks", Answer({"items": [], "next": None}))
    said = "2,043 ranks: RuntimeError: NCCL timeout; first: rank 17 at 03:12:07.221"
    assert stub.run("logs", "--errors", JOB).stdout.splitlines() == [said] * 7
    assert json.loads(stub.run("logs", "--errors", JOB, "--json").stdout)[0]["ranks"] == 2043
    shown = stub.run("show", JOB)
    assert shown.exit_code == 0, shown.stderr
    assert shown.stdout.count(said) == 5
    assert "and 2 more: holdfast logs --errors" in shown.stdout
    stub.on(f"GET /v1/jobs/{JOB}/errors", Answer({"items": [], "next": None}))
    assert "no line tells" in stub.run("logs", "--errors", JOB).stdout


def test_the_sizes_of_logs_are_shown(stub: Stub) -> None:
    streams = [
        {"job_id": JOB, "attempt": 1, "rank": rank, "stream": "stdout", "size": 40 << 20,
         "kept": 16 << 20, "ended": rank == 0}
        for rank in (0, 1)
    ]  # fmt: skip
    stub.on(f"GET /v1/jobs/{JOB}/logs/streams", Answer({"items": streams, "next": None}))
    shown = stub.run("logs", "--sizes", JOB).stdout
    assert "40M" in shown.replace("40.0M", "40M")
    assert "are kept, until history_days after" in shown
    assert len(json.loads(stub.run("logs", "--sizes", JOB, "--json").stdout)) == 2
