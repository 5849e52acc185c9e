"""Spans of time, cut into stretches (SPAN-1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.spans import Kept, find_parts, floor_time, list_days, widen_span
from holdfast.core.ledger.values import Step

BEGIN = datetime(2026, 3, 1, tzinfo=UTC)
KEPT = Kept(BEGIN + timedelta(days=8, hours=5), BEGIN + timedelta(days=4))
moments = st.integers(0, 12 * 86_400).map(lambda s: BEGIN + timedelta(seconds=s))
LENGTHS: dict[Step, int] = {"minute": 60, "hour": 3600, "day": 86_400}


@given(moments, moments, st.lists(moments, max_size=5), st.sampled_from(["minute", "hour", "day"]))
def test_the_parts_of_a_span_are_the_same_time_into_whatever_it_is_cut(
    since: datetime, until: datetime, cuts: list[datetime], longest: Step
) -> None:
    """SPAN-1"""
    since, until = min(since, until), max(since, until) + timedelta(minutes=1)
    parts = find_parts(since, until, KEPT, longest=longest, cuts=sorted(cuts))
    wide = widen_span(since, until, KEPT)
    assert (parts[0].since, parts[-1].until) == wide
    assert all(a.until == b.since and a.place <= b.place for a, b in pairwise(parts))
    for part in parts:
        assert part.since == floor_time(part.since, part.step)
        assert part.until == floor_time(part.until, part.step)
        assert LENGTHS[part.step] >= LENGTHS[KEPT.find_step(part.since)], "such rows are kept"
        if part.since >= KEPT.minutes_from:
            assert LENGTHS[part.step] <= LENGTHS[longest]


def test_a_part_crosses_no_cut() -> None:
    at = KEPT.minutes_from
    cut = at + timedelta(hours=2, minutes=30)
    parts = find_parts(at, at + timedelta(hours=4), KEPT, cuts=[cut])
    assert [(p.step, p.since.hour, p.since.minute, p.place) for p in parts] == [
        ("hour", 5, 0, 0),
        ("minute", 7, 0, 0),
        ("minute", 7, 30, 1),
        ("hour", 8, 0, 1),
    ]


def test_a_cut_within_a_day_that_has_no_hours_any_more_is_moved_to_its_nearer_end() -> None:
    cut = datetime(2026, 3, 2, 23, tzinfo=UTC)  # the start of 3 March in Berlin
    parts = find_parts(BEGIN, BEGIN + timedelta(days=4), KEPT, cuts=[cut])
    assert [(p.since.day, p.until.day, p.place) for p in parts] == [(1, 3, 0), (3, 5, 1)]


@pytest.mark.parametrize(
    ("zone", "starts"),
    [
        ("Europe/Berlin", ["27T23:00", "28T23:00", "29T22:00"]),  # 29 March has 23 hours
        ("Asia/Kolkata", ["27T18:30", "28T18:30", "29T18:30"]),
    ],
)
def test_days_are_those_of_the_readers_zone(zone: str, starts: list[str]) -> None:
    since = datetime(2026, 3, 28, tzinfo=UTC)
    found = list_days(since, since + timedelta(days=2, hours=18), ZoneInfo(zone))
    assert [f"{day.astimezone(UTC):%dT%H:%M}" for day in found] == starts
