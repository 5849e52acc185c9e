"""A search that is begun anew gives no line twice (CLIENT-1)."""

from __future__ import annotations

import msgspec

from holdfast.client.log_search import LogSearchFollower
from holdfast.client.rest import RestCall, read_nothing
from holdfast.client.sse import ServerEvent
from holdfast.wire.logs.search import LogFound, LogSearchEnd


def test_a_line_is_given_once_over_two_connections() -> None:
    follower = LogSearchFollower(RestCall("GET", "/v1/logs", read_nothing))
    lines = [
        LogFound(job="j", attempt=1, rank=rank, stream="stdout", offset=0, text="x")
        for rank in (0, 1)
    ]
    end = LogSearchEnd(
        matches=2, jobs=1, streams=2, kept_bytes=4, read_bytes=4, read_chunks=2, missing_bytes=0
    )

    def take(*values: LogFound | LogSearchEnd) -> list[LogFound | LogSearchEnd]:
        kinds = {LogFound: "found", LogSearchEnd: "end"}
        events = [ServerEvent(kinds[type(v)], msgspec.json.encode(v), None) for v in values]
        return [item for event in events for item in follower.read_event(event)]

    assert take(lines[0]) == [lines[0]]
    assert not follower.ended
    assert take(*lines, end) == [lines[1], end]
    assert follower.ended
