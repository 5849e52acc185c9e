"""`logs` says what its log did not keep, and nothing where it kept everything."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.jobs.ranks_output import Excerpt, find_last_lines
from holdfast.wire.logs.lines import LogLine
from tests.unit.cli.stub import JOB, Answer, Stub, job_record


def stream(name: str, size: int, kept: int, rank: int = 0) -> dict[str, Any]:
    return {
        "job_id": JOB, "attempt": 1, "rank": rank, "stream": name, "size": size, "kept": kept, "ended": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), ["97 bytes of stdout are not in the controller's copy", f"logs --full {JOB}"]),
        (("--stream", "stderr"), []),
        (("--tail-bytes", "2"), []),
    ],
)
def test_bytes_that_were_not_kept_are_counted(
    stub: Stub, flags: tuple[str, ...], said: list[str]
) -> None:
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record(state="succeeded", exit_code=0)))
    stub.on(f"GET /v1/jobs/{JOB}/logs", Answer(b"abc", kind="application/octet-stream"))
    found = [stream("stdout", 100, 3), stream("stderr", 3, 3)]
    stub.on(f"GET /v1/jobs/{JOB}/logs/streams", Answer({"items": found, "cursor": None}))
    done = stub.run("logs", JOB, *flags)
    assert done.exit_code == 0, done.stderr
    assert "abc" in done.stdout + done.stderr
    assert [line for line in said if line not in done.stderr] == []
    assert bool(said) == ("--full" in done.stderr)


# ---- excerpts


def line(data: bytes, offset: int = 0, at: datetime | None = None) -> LogLine:
    return LogLine(attempt=1, rank=0, stream="stdout", offset=offset, data=data, at=at)


@given(st.lists(st.sampled_from([b"a", b"\n", b"bc\n", b"\r9%"]), max_size=10), st.integers(0, 6))
def test_the_last_lines_are_those_of_the_text(words: list[bytes], count: int) -> None:
    data = b"".join(words)
    lines = [part + b"\n" for part in data.split(b"\n")[:-1]]
    rest = data.rpartition(b"\n")[2]
    wanted = b"".join((lines + ([rest] if rest else []))[-count:]) if count else b""
    assert data[len(data) - find_last_lines(data, count) :] == wanted


def test_an_excerpt_begins_where_it_should_and_a_time_stands_before_each_line() -> None:
    at = datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)
    told = "2026-01-02T03:04:05.678Z "
    excerpt = Excerpt({(1, 0, "stdout"): 4}, since=at, stamps=True)
    assert excerpt.choose_bytes(line(b"one\ntw", at=at)) == f"{told}tw".encode()
    assert excerpt.choose_bytes(line(b"o\n\nthree", 6, at)) == f"o\n{told}\n{told}three".encode()
    assert excerpt.choose_bytes(line(b"\rbar", 14, at)) == b"\rbar"
    assert excerpt.choose_bytes(line(b"late", 18, at - timedelta(seconds=1))) == b""
    assert excerpt.choose_bytes(line(b"\nhost\n", 22)) == b"\n" + b"-" * 24 + b" host\n"
