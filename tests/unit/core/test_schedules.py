"""When schedules come: through the hours that a clock skips or repeats, and after a time away."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.arrays.schedules import (
    LATE_SECONDS,
    MAX_CAUGHT_UP,
    ScheduleSpec,
    check_schedule,
    list_times,
    make_key,
    next_after,
    plan_runs,
)
from holdfast.core.spec import JobSpec
from holdfast.errors import ValidationError

JOB = JobSpec(argv=("x",))
NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
MOMENTS = st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))
CRONS = st.sampled_from(
    ["0 3 * * *", "30 2 * * *", "*/15 * * * *", "0 0 1 * *", "5 4 * * 0", "0 9-17 * * 1-5"]
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"])


def _spec(**fields: Any) -> ScheduleSpec:
    return ScheduleSpec(job=JOB, **fields)


def _local(cron: str, zone: str, after: str, count: int) -> list[str]:
    start = datetime.fromisoformat(after).replace(tzinfo=ZoneInfo(zone))
    times = list_times(_spec(cron=cron, time_zone=zone), start, start.astimezone(UTC))
    return [
        t.astimezone(ZoneInfo(zone)).strftime("%m-%d %H:%M %z")
        for t in itertools.islice(times, count)
    ]


# TIME-2, as Debian's cron does it: (cron, zone, after, the next times there)
CLOCK_CHANGES = [
    # Berlin skips 02:00 to 03:00 on 29 March 2026, and has it twice on 25 October.
    ("30 2 * * *", "Europe/Berlin", "2026-03-28T12:00", ["03-29 03:00 +0200", "03-30 02:30 +0200"]),
    ("30 2 * * *", "Europe/Berlin", "2026-10-24T12:00", ["10-25 02:30 +0200", "10-26 02:30 +0100"]),
    ("*/30 * * * *", "Europe/Berlin", "2026-03-29T01:00",
     ["03-29 01:30 +0100", "03-29 03:00 +0200", "03-29 03:30 +0200"]),
    ("*/30 * * * *", "Europe/Berlin", "2026-10-25T01:40",
     ["10-25 02:00 +0200", "10-25 02:30 +0200", "10-25 02:00 +0100", "10-25 02:30 +0100",
      "10-25 03:00 +0100"]),
    # New York skips 02:00 to 03:00 on 8 March 2026, and has 01:00 to 02:00 twice on 1 November.
    ("15 2 * * *", "America/New_York", "2026-03-07T12:00", ["03-08 03:00 -0400", "03-09 02:15 -0400"]),
    ("15 1 * * *", "America/New_York", "2026-10-31T12:00", ["11-01 01:15 -0400", "11-02 01:15 -0500"]),
    # Lord Howe's clock goes by half an hour.
    ("15 2 * * *", "Australia/Lord_Howe", "2026-10-03T12:00", ["10-04 02:30 +1100", "10-05 02:15 +1100"]),
]  # fmt: skip


@pytest.mark.parametrize(("cron", "zone", "after", "wanted"), CLOCK_CHANGES)
def test_the_hours_that_a_clock_skips_or_repeats(
    cron: str, zone: str, after: str, wanted: list[str]
) -> None:
    assert _local(cron, zone, after, len(wanted)) == wanted


@given(CRONS, ZONES, MOMENTS)
def test_times_only_go_forward_and_none_is_left_out(cron: str, zone: str, after: datetime) -> None:
    spec = _spec(cron=cron, time_zone=zone)
    times = list(itertools.islice(list_times(spec, after, after), 5))
    assert all(a < b for a, b in itertools.pairwise([after, *times]))
    for before, moment in itertools.pairwise([after, *times]):
        assert next_after(spec, after, before) == moment
        assert next_after(spec, after, moment - timedelta(seconds=1)) == moment


@given(st.floats(1, 1e6), MOMENTS, st.floats(0, 1e8))
def test_intervals_count_from_their_beginning(every: float, anchor: datetime, away: float) -> None:
    after = anchor + timedelta(seconds=away)
    step = timedelta(seconds=every)
    found = next_after(_spec(every_seconds=every), anchor, after)
    assert after < found <= after + step
    assert (found - anchor) % step == timedelta(0)


@given(
    st.sampled_from(["none", "one", "all"]),
    st.sampled_from(["skip", "queue", "cancel_running"]),
    st.booleans(),
    st.integers(0, 500_000),
    st.integers(10, 7200),
)
def test_every_time_that_came_is_accounted_for(
    catch_up: Any, overlap: Any, busy: bool, away: int, every: int
) -> None:
    spec = _spec(every_seconds=every, catch_up=catch_up, overlap=overlap)
    next_at = NOON + timedelta(seconds=every)
    now = next_at + timedelta(seconds=away)
    plan = plan_runs(spec, next_at, now, anchor=NOON, busy=busy)
    assert plan.next_at == next_after(spec, NOON, now)
    dues = [run.due_at for run in plan.runs]
    assert dues == sorted(set(dues))
    assert all(next_at <= due <= now for due in dues)
    assert plan.missed + len(dues) == away // every + 1
    submitted = [run for run in plan.runs if run.outcome == "submitted"]
    if overlap == "skip":
        assert len(submitted) <= (0 if busy else 1), "none beside another"
    else:
        assert [run.waits for run in submitted] == [busy or n > 0 for n in range(len(submitted))]
    assert len(dues) <= (MAX_CAUGHT_UP if catch_up == "all" else 1)
    if catch_up == "none":
        assert all((now - due).total_seconds() <= LATE_SECONDS for due in dues)
    elif overlap != "skip":
        assert dues[-1] == plan.next_at - timedelta(seconds=every), "the newest is among them"
    assert plan.cancels == (busy and overlap == "cancel_running" and bool(dues))


def test_nothing_is_due_before_its_time() -> None:
    spec = _spec(cron="0 3 * * *")
    at = next_after(spec, NOON, NOON)
    plan = plan_runs(spec, at, at - timedelta(seconds=1), anchor=NOON, busy=False)
    assert (plan.runs, plan.missed, plan.next_at) == ((), 0, at)


def test_a_year_away_is_not_counted_minute_by_minute() -> None:
    spec = _spec(cron="* * * * *", catch_up="all", overlap="queue")
    plan = plan_runs(spec, NOON, NOON + timedelta(days=365), anchor=NOON, busy=False)
    assert len(plan.runs) == MAX_CAUGHT_UP
    assert plan.missed <= 7 * 24 * 60


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "either `cron`"),
        ({"cron": "* * * * *", "every_seconds": 60}, "either `cron`"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "hourly"}, "minute, hour"),
        ({"cron": "*/5 * * * * *"}, "five fields"),
        ({"cron": "0 3 * *"}, "five fields"),
        ({"every_seconds": 60, "time_zone": "Europe/Berlin"}, "no time zone; write a cron line"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 0 * * *", "time_zone": "Mars/Base"}, "no time zone"),
        ({"cron": "0 0 * * *", "time_zone": "../etc/passwd"}, "no time zone"),
        ({"every_seconds": 60, "job": JobSpec(argv=("x",), idempotency_key="k")}, "by itself"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        check_schedule(ScheduleSpec(**{"job": JOB, **fields}), NOON)


@given(MOMENTS, st.sampled_from(["Europe/Berlin", "UTC"]))
def test_a_time_has_one_key_in_every_zone(moment: datetime, zone: str) -> None:
    assert make_key("s", moment) == make_key("s", moment.astimezone(ZoneInfo(zone)))
