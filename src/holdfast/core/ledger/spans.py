"""Divide the time that is asked for among the tables that have it.

SPAN-1  The parts of a span are the same time, and have the same sum, into any stretches: days of a
        time zone, hours, minutes, or where a price changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from holdfast.core.ledger.values import Step

if TYPE_CHECKING:
    import zoneinfo

_LENGTHS: dict[Step, timedelta] = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


class TimePart(msgspec.Struct, frozen=True):
    """A stretch of time that is read from the rows of one step. place: the number of the span's
    cuts before this part."""

    step: Step
    since: datetime
    until: datetime
    place: int = 0


class Kept(msgspec.Struct, frozen=True):
    """The times since which minutes and hours are kept; of earlier times only days are kept."""

    minutes_from: datetime
    hours_from: datetime

    def find_step(self, at: datetime) -> Step:
        """Return the length of the shortest rows that are kept of an instant: a minute, an hour or
        a day."""
        if at >= self.minutes_from:
            return "minute"
        return "hour" if at >= self.hours_from else "day"


def floor_time(at: datetime, step: Step) -> datetime:
    """Return the start of the minute, hour or day in which an instant of UTC is."""
    found = at.replace(second=0, microsecond=0)
    if step != "minute":
        found = found.replace(minute=0)
    return found.replace(hour=0) if step == "day" else found


def ceil_time(at: datetime, step: Step) -> datetime:
    """Return the first start of a minute, hour or day that is not before an instant of UTC."""
    found = floor_time(at, step)
    return found if found == at else found + _LENGTHS[step]


def widen_span(since: datetime, until: datetime, kept: Kept) -> tuple[datetime, datetime]:
    """Return the least span of whole minutes around `[since, until)`; where these are deleted already,
    of the hours or days that are there."""
    since, until = floor_time(since, "minute"), ceil_time(until, "minute")
    if since < kept.minutes_from:
        since = floor_time(since, kept.find_step(since))
    if until <= kept.minutes_from:
        until = ceil_time(until, "day" if until <= kept.hours_from else "hour")
    return since, until


def find_parts(
    since: datetime,
    until: datetime,
    kept: Kept,
    *,
    longest: Step = "day",
    cuts: Iterable[datetime] = (),
) -> list[TimePart]:
    """Return the parts of a widened span, each read from rows that are as long as they can be, but no
    longer than `longest` where shorter ones are kept. A part crosses no cut; a cut of an hour or a
    day that has no shorter rows any more is moved to its nearer end."""
    since, until = widen_span(since, until, kept)
    edges = [since, *(_move_cut(cut, kept) for cut in cuts), until]
    edges = [min(max(edge, since), until) for edge in edges]
    parts: list[TimePart] = []
    for place, (begin, end) in enumerate(pairwise(edges)):
        # Of what is older, there are no rows as short as `longest`.
        old = begin if longest == "day" else min(max(begin, kept.hours_from), end)
        hours = old if longest != "minute" else min(max(old, kept.minutes_from), end)
        parts += _read_days(begin, old, place)
        parts += _read_hours(old, hours, place)
        if longest == "day":
            parts += _read_days(hours, end, place)
        elif longest == "hour":
            parts += _read_hours(hours, end, place)
        else:
            parts += _list_parts(TimePart("minute", hours, end, place))
    return parts


def list_days(since: datetime, until: datetime, zone: zoneinfo.ZoneInfo) -> list[datetime]:
    """Return the starts of the days of a time zone on which a span lies, in that zone."""
    first = since.astimezone(zone)
    found = [first.replace(hour=0, minute=0, second=0, microsecond=0, fold=0)]
    while True:
        after = found[-1] + timedelta(days=1)  # of the wall clock
        if after.timestamp() >= until.timestamp():
            return found
        found.append(after)


def _move_cut(cut: datetime, kept: Kept) -> datetime:
    cut = cut.astimezone(UTC)
    step = kept.find_step(cut)
    low, high = floor_time(cut, step), ceil_time(cut, step)
    return low if cut - low < high - cut else high


def _read_days(since: datetime, until: datetime, place: int) -> list[TimePart]:
    days = TimePart("day", ceil_time(since, "day"), floor_time(until, "day"), place)
    if days.since >= days.until:
        return _read_hours(since, until, place)
    before = _read_hours(since, days.since, place)
    return [*before, days, *_read_hours(days.until, until, place)]


def _read_hours(since: datetime, until: datetime, place: int) -> list[TimePart]:
    hours = TimePart("hour", ceil_time(since, "hour"), floor_time(until, "hour"), place)
    if hours.since >= hours.until:
        return _list_parts(TimePart("minute", since, until, place))
    edges = (
        TimePart("minute", since, hours.since, place),
        TimePart("minute", hours.until, until, place),
    )
    return [*_list_parts(edges[0]), hours, *_list_parts(edges[1])]


def _list_parts(part: TimePart) -> list[TimePart]:
    return [part] if part.since < part.until else []
