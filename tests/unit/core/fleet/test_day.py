"""A whole day on simulated time: spikes, quiet, no capacity, the database away, machines that die."""

from __future__ import annotations

import pytest
from bench.fleet_day import Day, decide, decide_naively, keep_all

HOSTS = 30


@pytest.fixture(scope="module")
def naive_usd() -> float:
    return Day(HOSTS, 1).run(decide_naively).usd


@pytest.mark.parametrize(
    ("jobs_per_host", "rent_after", "longest_wait"),
    [(3.0, 30.0, 300.0), (3.0, None, 3600.0), (0.5, None, 900.0)],
)
def test_the_cycle_pays_for_little_more_than_work_and_leaves_nothing_waiting(
    jobs_per_host: float, rent_after: float | None, longest_wait: float, naive_usd: float
) -> None:
    day = Day(HOSTS, 1, jobs_per_host, rent_after)
    report = day.run(decide)
    assert report.usd < naive_usd
    assert report.usd < 1.2 * report.busy_usd
    assert report.p95_wait < longest_wait
    assert report.peak_hosts <= HOSTS
    assert report.finished + len(day.queue) + sum(
        h.job is not None for h in day.hosts.values()
    ) == (report.jobs), "no job is lost"


def test_a_day_is_the_same_for_every_rule() -> None:
    assert Day(5, 7).run(keep_all).jobs == Day(5, 7).run(decide).jobs


def test_the_night_ends_with_no_host() -> None:
    day = Day(HOSTS, 3)
    day.run(decide)
    busy = sum(host.job is not None for host in day.hosts.values())
    assert len(day.hosts) - busy <= 3, "what is idle at midnight was given back, or soon is"
