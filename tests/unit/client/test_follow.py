"""CLIENT-1 and CLIENT-2: following through lost connections, without a network."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.client.follow import EventFollower, LogFollower, ReconnectDelays, follow_log
from holdfast.client.rest import ask
from holdfast.client.sse import EventStreamReader, ServerEvent
from holdfast.core.records import EventRecord
from holdfast.errors import NotFound, TooLarge, Unavailable
from holdfast.wire.logs.lines import LogLine
from holdfast.wire.operations.cluster.events import LIST_EVENTS
from tests.unit.cli.stub import job_record


def log(
    offset: int, data: bytes, *, attempt: int = 1, stream: str = "stdout", gap: int = 0
) -> ServerEvent:
    line = LogLine(attempt=attempt, rank=0, stream=stream, offset=offset, data=data, gap=gap)
    return ServerEvent("log", msgspec.json.encode(line), None)


def state(kind: str = "state", **fields: object) -> ServerEvent:
    return ServerEvent(kind, msgspec.json.encode(job_record(**fields)), None)


def feed(follower: LogFollower, *events: ServerEvent) -> list[object]:
    return [item for event in events for item in follower.read_event(event)]


def follower(**which: object) -> LogFollower:
    return LogFollower(follow_log("job", **which))  # type: ignore[arg-type]  # plain words stand for the typed value in a test


def test_overlapping_bytes_are_given_once() -> None:
    f = follower()
    first = feed(f, log(0, b"hello "), log(6, b"wor"))
    again = feed(f, log(0, b"hello "), log(4, b"o world"))
    assert b"".join(i.data for i in first + again) == b"hello world"  # type: ignore[attr-defined]  # only log lines were sent


def test_streams_and_attempts_are_kept_apart() -> None:
    f = follower()
    given = feed(f, log(0, b"a"), log(0, b"b", stream="stderr"), log(0, b"c", attempt=2))
    assert [i.data for i in given] == [b"a", b"b", b"c"]  # type: ignore[attr-defined]  # only log lines were sent


def test_a_gap_at_the_end_is_told() -> None:
    lines = feed(follower(), log(0, b"abc"), log(10, b"", gap=7))
    assert [i.gap for i in lines] == [0, 7]  # type: ignore[attr-defined]  # only log lines were sent


def test_a_jump_is_told_as_a_gap_once() -> None:
    f = follower()
    lines = feed(f, log(0, b"abc"), log(10, b"k", gap=7), log(11, b"l"))
    assert [i.gap for i in lines] == [0, 7, 0]  # type: ignore[attr-defined]  # only log lines were sent


def test_a_lost_connection_goes_on_from_the_attempt_that_was_read() -> None:
    """The job was requeued while no reader was connected: the rest of attempt 1 must still be
    read."""
    f = follower(tail=100)
    assert dict(f.request()[0].query) == {"tail": "100", "follow": "1"}
    feed(f, log(0, b"one"), log(0, b"err", stream="stderr"))
    assert dict(f.request()[0].query) == {"follow": "1", "since": "1", "offset": "3"}
    feed(f, state(attempts=2, state="running"), log(0, b"two", attempt=2))
    assert dict(f.request()[0].query) == {"follow": "1", "since": "2"}
    assert [i.state for i in feed(f, state("end", attempts=2, state="succeeded"))] == ["succeeded"]  # type: ignore[attr-defined]  # only a job was sent
    assert f.ended


@pytest.mark.parametrize(
    ("asked", "attempts", "since"),
    [({}, 0, "1"), ({}, 2, "2"), ({"since": 1}, 2, "1"), ({"since": 1, "tail": 9}, 0, "1")],
)
def test_a_connection_lost_before_the_first_byte_misses_no_attempt(
    asked: dict[str, int], attempts: int, since: str
) -> None:
    """The attempt is the one that the server began with, however many there are meanwhile."""
    f = follower(**asked)
    feed(f, state(attempts=attempts), state(attempts=3))
    query = dict(f.request()[0].query)
    assert (query["since"], query.get("tail")) == (since, "9" if "tail" in asked else None)


def test_what_there_is_is_read_of_one_attempt() -> None:
    f = follower(wait=False, full=True)
    feed(f, state(attempts=2), log(0, b"two", attempt=2))
    assert dict(f.request()[0].query) == {"full": "1", "attempt": "2"}


def test_a_chosen_attempt_ends_with_it() -> None:
    f = follower(attempt=1)
    assert [i.state for i in feed(f, state("end", attempts=3, state="running"))] == ["running"]  # type: ignore[attr-defined]  # only a job was sent
    assert f.ended


def test_a_problem_in_the_stream_is_an_error_of_its_kind() -> None:
    for code, kind in (("unavailable", Unavailable), ("not_found", NotFound)):
        problem = msgspec.json.encode({"code": code, "detail": "what happened"})
        with pytest.raises(kind, match="what happened"):
            feed(follower(), ServerEvent("problem", problem, None))


def test_events_resume_after_the_last_one_seen() -> None:
    f = EventFollower(ask(LIST_EVENTS, cursor_name="after", tail=5))
    record = EventRecord(id="e7", at="2026-01-01T00:00:00Z", kind="job.failed")  # type: ignore[arg-type]  # plain words stand for the typed value in a test
    assert [
        e.id for e in f.read_event(ServerEvent("job.failed", msgspec.json.encode(record), "e7"))
    ] == ["e7"]
    call, headers = f.request()
    assert call.query == (("after", "e7"),)
    assert headers["Last-Event-ID"] == "e7"


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_events_are_read_however_the_bytes_are_cut(size: int) -> None:
    text = b": hello\n\nid: 4\nevent: log\ndata: a\ndata: b\r\n\r\ndata: c\n\nevent: empty\n\n"
    reader = EventStreamReader()
    found = [e for i in range(0, len(text), size) for e in reader.feed(text[i : i + size])]
    assert found == [ServerEvent("log", b"a\nb", "4"), ServerEvent("message", b"c", "4")]


def test_an_endless_event_is_refused() -> None:
    reader = EventStreamReader()
    for _ in range(16):
        reader.feed(b"x" * (1 << 20))
    with pytest.raises(TooLarge):
        reader.feed(b"x")


def test_the_delays_end_and_start_anew() -> None:
    delays = ReconnectDelays(3.0)
    waits = []
    while (delay := delays.next_delay(0.5)) is not None:
        waits.append(delay)
    assert waits[0] == pytest.approx(0.05)
    assert 3.0 <= sum(waits) < 4.1
    assert max(waits) <= 1.25
    delays.succeed()
    assert delays.next_delay(0.5) == pytest.approx(0.05)
