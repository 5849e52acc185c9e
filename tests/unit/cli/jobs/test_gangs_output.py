"""The output of several ranks: whole lines with their ranks, and one rank byte for byte."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.jobs.ranks_output import MAX_LINE_BYTES, RankPrefixer
from holdfast.wire.logs.lines import LogLine
from tests.unit.cli.stub import JOB, Answer, Stub, events, job_record


def line(
    rank: int, data: bytes, offset: int = 0, attempt: int = 1, stream: str = "stdout"
) -> LogLine:
    return LogLine(attempt=attempt, rank=rank, stream=stream, offset=offset, data=data)


def serve(stub: Stub, *lines: LogLine, tasks: int = 2) -> None:
    job = job_record(state="succeeded", exit_code=0, tasks=tasks)
    body = events(*(("log", one) for one in lines), ("end", job))
    stub.on(f"GET /v1/jobs/{JOB}/logs", Answer(body, kind="text/event-stream"))
    stub.on("POST /v1/jobs", Answer(job_record(state="queued", attempts=0, tasks=tasks), 201))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job))


def test_run_shows_every_rank_in_whole_lines(stub: Stub) -> None:
    serve(
        stub,
        line(0, b"half"),
        line(11, b"two\nlines\n"),
        line(0, b" whole\nrest", 4),
        line(3, b"oh\n", stream="stderr"),
        tasks=12,
    )
    done = stub.run("run", "--tasks", "12", "--", "x")
    assert done.exit_code == 0, done.stderr
    assert done.stdout == "[11] two\n[11] lines\n[ 0] half whole\n[ 0] rest\n"
    assert "[ 3] oh\n" in done.stderr
    assert "rank=" not in stub.requests[-1].path


def test_one_rank_is_followed_byte_for_byte(stub: Stub) -> None:
    serve(stub, line(1, b"a\r\x00"))
    done = stub.run("run", "--tasks", "2", "--rank", "1", "--", "x")
    assert (done.exit_code, done.stdout_bytes) == (0, b"a\r\x00")
    assert "rank=1" in stub.requests[-1].path
    sent = len(stub.requests)
    done = stub.run("run", "--tasks", "2", "--rank", "2", "--", "x")
    assert (done.exit_code, len(stub.requests)) == (2, sent), "refused before anything is submitted"
    assert "of 2 tasks the last is rank 1" in done.stderr


def test_a_job_of_one_is_untouched(stub: Stub) -> None:
    serve(stub, line(0, b"no end"), tasks=1)
    assert stub.run("run", "--", "x").stdout == "no end"


def test_logs_of_a_gang_are_shown_by_time(stub: Stub) -> None:
    """The server sends them so (FOLLOW-4)."""
    streams = [
        {"job_id": JOB, "attempt": 2, "rank": r, "stream": s, "size": 4, "kept": 4, "ended": True}
        for r in (0, 1)
        for s in ("stdout", "stderr")
    ]
    serve(
        stub, line(0, b"a\nb"), line(1, b"c\n"), line(0, b"\n", 3), line(1, b"d", stream="stderr")
    )
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record(tasks=2, attempts=2)))
    stub.on(f"GET /v1/jobs/{JOB}/logs/streams", Answer({"items": streams, "next": None}))
    done = stub.run("logs", JOB)
    assert (done.stdout, done.stderr) == ("[0] a\n[1] c\n[0] b\n", "[1] d\n")
    (asked,) = [r.path for r in stub.requests if r.path.startswith(f"/v1/jobs/{JOB}/logs?")]
    assert "events=1" in asked
    assert "rank" not in asked
    stub.on(f"GET /v1/jobs/{JOB}/logs", Answer(b"x", kind="application/octet-stream"))
    shown = json.loads(stub.run("logs", JOB, "--stream", "stdout", "--json").stdout)
    assert [(one["rank"], base64.b64decode(one["data"])) for one in shown] == [(0, b"x"), (1, b"x")]
    assert stub.run("logs", JOB, "--rank", "1", "--stream", "stdout").stdout == "x"


def test_logs_of_a_gang_are_followed_with_their_ranks(stub: Stub) -> None:
    serve(stub, line(0, b"a\n"), line(1, b"b\n"))
    assert stub.run("logs", "-f", JOB).stdout == "[0] a\n[1] b\n"
    assert stub.run("logs", "-f", JOB, "--rank", "0").stdout == "a\nb\n", (
        "the stub serves both: nothing is put before them"
    )


# ---- the prefixer
@given(
    st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from([b"a", b"bc", b"\n", b"\r", b"\r\n", b"d\ne", b"\x00\xff"]),
        ),
        max_size=60,
    )
)
def test_every_rank_keeps_its_bytes_in_order_and_lines_never_mix(
    pieces: list[tuple[int, bytes]],
) -> None:
    prefixer = RankPrefixer(4)
    out = b"".join(prefixer.feed(1, rank, "stdout", data) for rank, data in pieces)
    out += b"".join(data for _, data in prefixer.close())
    given_bytes = {rank: b"".join(d for r, d in pieces if r == rank) for rank in range(4)}
    found: dict[int, bytes] = dict.fromkeys(range(4), b"")
    # Every line, however it ends, begins with its rank.
    position = 0
    while position < len(out):
        assert out[position : position + 1] == b"["
        rank = int(out[position + 1 : position + 2])
        assert out[position + 2 : position + 4] == b"] "
        begin = position + 4
        end = begin
        while out[end : end + 1] not in (b"\n", b"\r"):
            end += 1
        end += 2 if out[end : end + 2] == b"\r\n" else 1
        found[rank] += out[begin:end]
        position = end
    for rank, data in given_bytes.items():
        got = found[rank]
        # At most the end of the last line was put there.
        assert (
            got == data
            or got == data.rstrip(b"\r") + b"\n"
            or (data.endswith(b"\r") and got == data[:-1] + b"\n")
        )


def test_a_line_without_an_end_is_not_kept_for_ever() -> None:
    prefixer = RankPrefixer(2)
    assert prefixer.feed(1, 0, "stdout", b"x" * MAX_LINE_BYTES) == b""
    assert prefixer.feed(1, 0, "stdout", b"y").startswith(b"[0] xxx")
    assert list(prefixer.close()) == []


@pytest.mark.parametrize("end", [b"", b"\r"])
def test_a_later_attempt_ends_what_the_one_before_left_open(end: bytes) -> None:
    prefixer = RankPrefixer(2)
    assert prefixer.feed(1, 0, "stdout", b"step 7" + end) == b""
    assert prefixer.feed(2, 1, "stdout", b"new\n") == b"[1] new\n"
    assert prefixer.feed(2, 0, "stdout", b"step 0\n") == b"[0] step 7\n[0] step 0\n"
