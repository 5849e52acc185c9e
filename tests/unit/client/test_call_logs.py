"""A follower of a call's output goes on where it was, whatever began meanwhile."""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.client.call_logs import CallLogFollower
from holdfast.client.rest import RestCall
from holdfast.client.sse import ServerEvent
from holdfast.wire.calls import CallLogLine


def make(**query: str) -> CallLogFollower:
    call: RestCall[None] = RestCall("GET", "/logs", lambda data: None, tuple(query.items()))
    return CallLogFollower(call)


def feed(follower: CallLogFollower, kind: str, value: Any) -> list[CallLogLine]:
    return list(
        follower.read_event(ServerEvent(kind=kind, data=msgspec.json.encode(value), id=None))
    )


def line(offset: int, data: bytes) -> CallLogLine:
    return CallLogLine(attempt=1, job="j", stream="stdout", offset=offset, data=data)


def test_a_lost_connection_goes_on_with_the_attempt_that_was_read() -> None:
    """The call was tried again while no reader was connected."""
    follower = make(follow="1")
    assert dict(follower.request()[0].query) == {"follow": "1"}
    feed(follower, "attempt", {"attempt": 1})
    assert [found.data for found in feed(follower, "log", line(0, b"one"))] == [b"one"]
    assert dict(follower.request()[0].query) == {"follow": "1", "since": "1"}
    assert [found.data for found in feed(follower, "log", line(0, b"one more"))] == [b" more"]
    feed(follower, "attempt", {"attempt": 2})
    assert dict(follower.request()[0].query)["since"] == "2"


def test_one_that_does_not_follow_keeps_to_its_attempt() -> None:
    follower = make()
    feed(follower, "attempt", {"attempt": 3})
    assert dict(follower.request()[0].query) == {"attempt": "3"}
    chosen = make(attempt="1", follow="1")
    feed(chosen, "attempt", {"attempt": 1})
    assert dict(chosen.request()[0].query) == {"attempt": "1", "follow": "1"}
