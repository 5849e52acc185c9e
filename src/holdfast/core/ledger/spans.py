"""Divide the time that is asked for among the tables that have it."""

from datetime import datetime, timedelta

import msgspec

from holdfast.core.ledger.values import Step

_LENGTHS: dict[Step, timedelta] = {
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


class TimePart(msgspec.Struct, frozen=True):
    """A stretch of time that is read from the rows of one step."""

    step: Step
    since: datetime
    until: datetime


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


def find_parts(
    since: datetime,
    until: datetime,
    minutes_from: datetime,
    hours_from: datetime,
    step: Step | None = None,
) -> list[TimePart]:
    """Return the parts of `[since, until)`: whole days from the days, and their edges from hours
    and minutes. Where those are deleted already, an edge is widened to the hour or day that is
    there. step: read this one alone, because its rows are shown one by one."""
    if step is not None:
        return _list_parts(TimePart(step, floor_time(since, step), ceil_time(until, step)))
    since, until = _widen(since, until, minutes_from, hours_from)
    days = TimePart("day", ceil_time(since, "day"), floor_time(until, "day"))
    if days.since >= days.until:
        return _find_hours(since, until)
    before, after = _find_hours(since, days.since), _find_hours(days.until, until)
    return [*before, days, *after]


def _widen(
    since: datetime, until: datetime, minutes_from: datetime, hours_from: datetime
) -> tuple[datetime, datetime]:
    since, until = floor_time(since, "minute"), ceil_time(until, "minute")
    if since < minutes_from:
        since = floor_time(since, "day" if since < hours_from else "hour")
    if until <= minutes_from:
        until = ceil_time(until, "day" if until <= hours_from else "hour")
    return since, until


def _find_hours(since: datetime, until: datetime) -> list[TimePart]:
    hours = TimePart("hour", ceil_time(since, "hour"), floor_time(until, "hour"))
    if hours.since >= hours.until:
        return _list_parts(TimePart("minute", since, until))
    edges = TimePart("minute", since, hours.since), TimePart("minute", hours.until, until)
    return [*_list_parts(edges[0]), hours, *_list_parts(edges[1])]


def _list_parts(part: TimePart) -> list[TimePart]:
    return [part] if part.since < part.until else []
