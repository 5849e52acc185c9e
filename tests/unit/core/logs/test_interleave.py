"""Chunks of many streams are shown by time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.logs.interleave import interleave


class Chunk(NamedTuple):
    at: datetime
    name: int


def chunk(second: int, name: int = 0) -> Chunk:
    return Chunk(datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=second), name)


STREAMS = st.lists(st.lists(st.integers(0, 9), max_size=8).map(sorted), max_size=5)


@given(STREAMS, st.integers(1, 4))
def test_all_chunks_come_once_by_time_however_few_are_read_at_once(
    seconds: list[list[int]], limit: int
) -> None:
    streams = [[chunk(s, n) for n, s in enumerate(of_stream)] for of_stream in seconds]
    shown: list[tuple[int, Chunk]] = []
    places = [0] * len(streams)
    while True:
        part = interleave(
            [s[at : at + limit] for s, at in zip(streams, places, strict=True)], limit
        )
        if not part:
            break
        shown += part
        for number, _ in part:
            places[number] += 1
    assert places == [len(s) for s in streams], "none is left out"
    assert [c.at for _, c in shown] == sorted(c.at for s in streams for c in s)
    for number, stream in enumerate(streams):
        assert [c for n, c in shown if n == number] == stream


def test_chunks_of_one_time_are_in_the_order_of_the_streams() -> None:
    shown = interleave([[chunk(2), chunk(5)], [chunk(1), chunk(2)], []], 9)
    assert [(n, c.at.second) for n, c in shown] == [(1, 1), (0, 2), (1, 2), (0, 5)]
