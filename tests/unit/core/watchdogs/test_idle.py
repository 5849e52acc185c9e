"""Idle: a job at which a person sits ends where that person has left it, and never unasked."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import Cause
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.watchdogs import GpuReading, LeavingSoon, Reading, TaskWatch, TreeReading
from holdfast.core.watchdogs.idle import Next, decide, find_lead

TIMES = st.floats(0, 1e6)


@given(
    now=TIMES,
    last_key=TIMES,
    last_traffic=TIMES,
    last_work=TIMES,
    warned_at=st.none() | TIMES,
    timeout=st.floats(1, 1e5),
)
def test_a_job_ends_only_when_all_three_are_long_ago_and_the_person_had_time(
    now: float,
    last_key: float,
    last_traffic: float,
    last_work: float,
    warned_at: float | None,
    timeout: float,
) -> None:
    """AWAY-1, AWAY-2."""
    seen = (last_key, last_traffic, last_work)
    found = decide(
        now,
        last_key=last_key,
        last_traffic=last_traffic,
        last_work=last_work,
        warned_at=warned_at,
        timeout=timeout,
    )
    if found is Next.END:
        assert all(now - each >= timeout for each in seen)
        assert warned_at is not None
        assert warned_at >= max(seen)
        assert now - warned_at >= find_lead(timeout)
    if any(now - each < timeout - find_lead(timeout) for each in seen):
        assert found is Next.KEEP


@given(stirs=st.lists(st.floats(0.1, 500), max_size=30), timeout=st.floats(1, 300))
def test_whatever_a_person_does_each_end_is_told_before_and_comes_in_the_end(
    stirs: list[float], timeout: float
) -> None:
    settings = WatchSettings(idle_timeout_seconds=timeout, health_watch="off")
    watch = TaskWatch(settings, gpus=0)
    watch.started(0.0)
    now, active, told_at = 0.0, 0.0, None
    keys = sorted(stirs)
    while watch.trip is None:
        now += timeout / 16
        assert now < 1000 + 3 * timeout
        while keys and keys[0] <= now:
            keys.pop(0)
            watch.touch(now, key=True)
            active = now
        for verdict in watch.tick(now):
            if isinstance(verdict, LeavingSoon):
                told_at = now
    assert told_at is not None
    assert told_at >= active
    assert now - told_at >= find_lead(timeout)
    assert now - active >= timeout


def reading(at: float, percent: float | None, cpu: float = 0.0) -> Reading:
    gpu = GpuReading(index=0, utilisation_percent=percent, memory_bytes=1 << 30)
    tree = TreeReading(cpu_seconds=cpu, io_bytes=0, rss_bytes=1 << 20)
    return Reading(at=at, gpus=[gpu], tree=tree)


@pytest.mark.parametrize(
    ("gpus", "percent", "cpu_rate", "kept"),
    [
        (1, 50.0, 0.0, True),
        (1, 0.0, 0.0, False),
        (1, 0.0, 1.0, False),  # its processes alone are no work of a GPU
        (1, None, 0.0, True),  # unreadable is not idle
        (0, 0.0, 1.0, True),
        (0, 0.0, 0.0, False),
    ],
)
def test_work_keeps_a_job_that_no_person_touches(
    gpus: int, percent: float | None, cpu_rate: float, kept: bool
) -> None:
    settings = WatchSettings(idle_timeout_seconds=100.0, health_watch="off")
    watch = TaskWatch(settings, gpus=gpus)
    watch.started(0.0)
    for now in range(1, 400):
        wish = watch.wants_sample()
        if wish is not None and wish.at <= now:
            watch.sample(now, reading(now, percent, cpu_rate * now), owns_whole_box=True)
        watch.tick(now)
    trip = watch.trip
    assert (trip is None) == kept
    if trip is not None:
        assert trip.exit_code == 80
        assert "no key, no traffic and no work" in trip.reason


def test_a_watch_that_an_earlier_agent_saved_goes_on_counting() -> None:
    settings = WatchSettings(idle_timeout_seconds=100.0)
    watch = TaskWatch(settings, gpus=0)
    watch.started(0.0)
    watch.touch(40.0, key=True)
    again = TaskWatch.restore(watch.dump(45.0), 60.0, settings, gpus=0)
    assert again.tick(89.0) == []
    assert isinstance(again.tick(90.0)[0], LeavingSoon)


def test_a_job_that_its_user_left_is_never_run_again() -> None:
    from holdfast.core.causes import CHARGED_TO, Budget

    assert CHARGED_TO[Cause.LEFT_IDLE] is Budget.NEVER
