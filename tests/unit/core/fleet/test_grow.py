"""Scale up: what waits is worth hosts, and what holds them back is said."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fleet.actions import Spawn
from holdfast.core.fleet.breaker import BREAKER_FAILURES, PROBE_SECONDS
from holdfast.core.fleet.cycle import plan_fleet
from holdfast.core.fleet.demand import Prices, cap_waiting
from holdfast.core.fleet.snapshot import (
    FleetSnapshot,
    OfferTrouble,
    PoolView,
    SpawnOutcome,
    Waiting,
)
from holdfast.core.placement.types import QuotaLeft
from tests.unit.core.fleet.fleets import (
    EIGHT,
    NOON,
    ONE,
    host,
    kinds,
    plan,
    pool,
    spawned,
    starting,
    waits,
)


@pytest.mark.parametrize(
    ("queued", "active", "starts", "makes"),
    [
        (0, 0, 0, 0),
        (1, 0, 0, 1),  # none active and work queued
        (3, 1, 0, 0),  # at the threshold, not above it
        (4, 1, 0, 1),
        (30, 0, 0, 10),
        (30, 2, 3, 5),  # what starts counts
        (30, 10, 0, 0),
        (300, 0, 0, 20),  # max
    ],
)
def test_jobs_are_worth_a_third_of_a_host(
    queued: int, active: int, starts: int, makes: int
) -> None:
    hosts = tuple(host(n, leases=1) for n in range(active))
    hosts += tuple(starting(100 + n) for n in range(starts))
    assert spawned(plan(pool(max=20), hosts, waits(queued))) == makes


def late(jobs: int, **changes: Any) -> Waiting:
    """Jobs that have waited for the pool's `rent_after_seconds`."""
    return waits(jobs, **{"oldest_seconds": 60.0, "newest_seconds": 30.0, **changes})


def test_a_job_that_has_waited_gets_a_host_beside_the_busy_ones() -> None:
    """DEMAND-5"""
    busy = tuple(host(n, leases=1) for n in range(2))
    assert spawned(plan(pool(), busy, waits(2))) == 0, "two jobs are worth less than a host"
    assert spawned(plan(pool(), busy, late(2))) == 2
    assert spawned(plan(pool(), (*busy, host(7), starting(8)), late(2))) == 0, (
        "two are free or come"
    )
    assert spawned(plan(pool(max=3), busy, late(2))) == 1, "under the same ceilings"
    assert spawned(plan(pool(rent_after_seconds=None), busy, late(2))) == 0
    assert spawned(plan(pool(rent_after_seconds=120.0), busy, late(2))) == 0
    ratio = pool(max=20, jobs_per_host=1.0)
    assert spawned(plan(ratio, busy, late(1), waits(7))) == 6, "the larger of the two rules"


def test_jobs_that_have_waited_share_the_hosts_that_they_fill() -> None:
    """DEMAND-5"""
    busy = (host(0, offer="eight", leases=8),)
    wide = pool(offers=(EIGHT,), max=9)
    assert spawned(plan(wide, busy, late(9))) == 2, "eight jobs a machine"
    assert spawned(plan(wide, busy, late(1), late(1, gpus=4))) == 1
    assert spawned(plan(wide, busy, late(2, tasks=16))) == 4, "two gangs of two machines each"


def test_a_job_that_has_waited_goes_past_a_pool_whose_hosts_are_all_busy() -> None:
    """DEMAND-5: a cheaper pool that is full of work brings it no host."""
    dear = msgspec.structs.replace(ONE, usd_per_hour=5.0)
    full = PoolView(spec=pool(max=1), hosts=(host(0, leases=1),))
    other = PoolView(spec=pool(name="q", offers=(dear,)))
    at = FleetSnapshot(at=NOON, pools=(full, other), waiting=(late(1),))
    assert [spawned(found) for found in plan_fleet(at)] == [0, 1]


@given(
    queued=st.integers(0, 500),
    active=st.integers(0, 20),
    starts=st.integers(0, 20),
    lowest=st.integers(0, 10),
    extra=st.integers(0, 30),
    threshold=st.floats(0.1, 50),
)
def test_the_rule_holds_for_any_pool(
    queued: int, active: int, starts: int, lowest: int, extra: int, threshold: float
) -> None:
    spec = pool(min=lowest, max=lowest + extra, jobs_per_host=threshold)
    hosts = tuple(host(n, leases=1) for n in range(active))
    hosts += tuple(starting(100 + n) for n in range(starts))
    wanted = max(lowest, math.ceil(queued / threshold - 1e-9)) - (active + starts)
    bounded = max(0, min(wanted, spec.max - active - starts))
    assert spawned(plan(spec, hosts, waits(queued))) == bounded


def test_what_is_spawned_says_how_it_was_counted() -> None:
    """One is not many."""
    (one,) = kinds(plan(pool(), (), waits(1)), Spawn)
    assert one.reason == "1 host is needed, 0 serve and 0 start: 1 more"
    (many,) = kinds(plan(pool(), (host(0, leases=1), starting(1)), waits(9)), Spawn)
    assert many.reason == "3 hosts are needed, 1 serves and 1 starts: 1 more"


def test_min_is_restored_without_any_work() -> None:
    assert spawned(plan(pool(min=2), (host(0, "error", leases=1),))) == 2


def test_a_buffer_is_kept_while_others_are_busy() -> None:
    busy = tuple(host(n, leases=1) for n in range(3))
    assert spawned(plan(pool(buffer=2), busy)) == 2
    assert spawned(plan(pool(buffer=2), (*busy, host(7)))) == 1
    assert spawned(plan(pool(buffer=2))) == 0, "with nothing to do nothing is spare"


def test_a_waiting_gang_counts_its_whole_size_at_once() -> None:
    assert spawned(plan(pool(), (), waits(1, tasks=8))) == 8
    busy = (host(0, leases=1), host(1))
    assert spawned(plan(pool(), busy, waits(1, tasks=8))) == 7, "beside the busy one, with the idle"
    wide = pool(offers=(EIGHT,), max=4)
    assert spawned(plan(wide, (), waits(1, tasks=16))) == 2, "eight ranks a machine"


def test_a_gang_too_large_for_the_pool_is_said_and_rents_nothing() -> None:
    found = plan(pool(max=4), (), waits(1, tasks=8))
    assert spawned(found) == 0
    assert "no offer of pool p holds 8 × 1 GPUs within 4 hosts" in found.blocked


def test_a_host_that_a_job_does_not_fit_is_no_supply_for_it() -> None:
    """DEMAND-3."""
    spec = pool(offers=(ONE, EIGHT))
    small = tuple(host(n) for n in range(3))
    found = plan(spec, small, waits(1, gpus=8))
    assert [(s.offer, s.count) for s in kinds(found, Spawn)] == [("eight", 1)]
    assert spawned(plan(spec, small, waits(1))) == 0


def test_the_cheapest_pool_that_fits_comes_first_and_the_rest_goes_on() -> None:
    """DEMAND-2."""
    cheap = pool(name="cheap", max=2)
    dear = pool(name="dear", offers=(EIGHT,), max=5)
    views = (PoolView(spec=dear), PoolView(spec=cheap))
    plans = plan_fleet(FleetSnapshot(at=NOON, pools=views, waiting=(waits(9),)))
    assert [(p.pool, spawned(p)) for p in plans] == [("dear", 1), ("cheap", 2)]


def test_each_pool_that_could_run_more_says_what_bounds_it() -> None:
    """A pool that is full had said that it scales, and the other one's ceiling was not heard of."""
    full = PoolView(spec=pool(name="full", max=1), hosts=(host(0, leases=1),))
    poor = PoolView(spec=pool(name="poor", offers=(EIGHT,), max_usd_per_hour=10.0))
    other = PoolView(spec=pool(name="other", queues=("video",)))
    shot = FleetSnapshot(at=NOON, pools=(full, poor, other), waiting=(waits(9),))
    assert [found.blocked for found in plan_fleet(shot)] == [
        "pool full at its max of 1 host",
        "pool poor at its $/hour ceiling of $10.00: one more host would make it $18.00",
        "",
    ]
    enough = msgspec.structs.replace(shot, waiting=(waits(6),))
    assert [found.blocked for found in plan_fleet(enough)] == ["", "", ""]


def test_what_providers_ask_decides_between_pools() -> None:
    """DEMAND-2: by its own offer `dear` costs nine times as much."""
    views = (PoolView(spec=pool(name="cheap")), PoolView(spec=pool(name="dear", offers=(EIGHT,))))
    shot = FleetSnapshot(at=NOON, pools=views, waiting=(waits(3),))

    def count(prices: Prices) -> list[int]:
        return [spawned(found) for found in plan_fleet(shot, prices)]

    assert count({}) == [1, 0]
    assert count({"dear": {"eight": 0.5}}) == [0, 1]
    assert count({"dear": {"eight": 0.5}, "cheap": {"one": 0.4}}) == [1, 0]


def test_a_change_of_prices_rents_nothing_twice() -> None:
    """DEMAND-2: the host that starts was the cheapest a moment ago."""
    dear = pool(name="dear", offers=(EIGHT,))
    views = (
        PoolView(spec=pool(name="cheap")),
        PoolView(spec=dear, hosts=(starting(0, offer="eight"),)),
    )
    for jobs, more in ((3, 0), (4, 1)):
        plans = plan_fleet(FleetSnapshot(at=NOON, pools=views, waiting=(waits(jobs),)))
        assert [spawned(found) for found in plans] == [more, 0]


def test_jobs_beyond_their_queues_limit_rent_nothing() -> None:
    waiting = (waits(9, oldest_seconds=1.0), waits(2, gpus=8, oldest_seconds=5.0))
    assert [w.jobs for w in cap_waiting(waiting, {"gpu": 3})] == [2, 1]
    assert cap_waiting(waiting, {"gpu": 0}) == ()
    assert [w.jobs for w in cap_waiting(waiting, {"cpu": 0})] == [2, 9]


def test_jobs_beyond_their_projects_quotas_rent_nothing() -> None:
    """QUOTA-2: the same rooms as admission would give them, the oldest first."""
    waiting = (
        waits(9, project="a", oldest_seconds=2.0),
        waits(2, project="a", oldest_seconds=5.0, gpus=8),
        waits(4, project="b", oldest_seconds=1.0),
    )

    def cap(**left: int | None) -> list[int]:
        return [w.jobs for w in cap_waiting(waiting, {}, {"a": QuotaLeft(**left)})]

    assert cap(jobs=3) == [2, 1, 4]
    assert cap(gpus=12) == [1, 4, 4]
    assert cap(gpus=12, jobs=2) == [1, 1, 4]
    assert cap(jobs=0) == cap(gpus=0) == cap(jobs=-2) == [4], "a quota that was lowered"
    members = (waits(3, tasks=1),)
    assert cap_waiting(members, {}, {"": QuotaLeft(jobs=9)}) == members


def test_queues_and_labels_decide_which_pool_serves() -> None:
    assert spawned(plan(pool(queues=("cpu",)), (), waits(9))) == 0
    assert spawned(plan(pool(labels={"zone": "a"}), (), waits(9, host_labels={"zone": "a"}))) == 3
    assert spawned(plan(pool(labels={"zone": "a"}), (), waits(9, host_labels={"zone": "b"}))) == 0


def test_an_hourly_ceiling_counts_machines_that_are_being_ended() -> None:
    """MONEY-1."""
    spec = pool(max_usd_per_hour=3.0)
    found = plan(spec, (host(0, "error", leases=1), host(1, leases=1)), waits(30))
    assert spawned(found) == 1
    said = "pool p at its $/hour ceiling of $3.00: one more host would make it $4.00"
    assert found.blocked == said


def test_a_daily_ceiling_looks_an_hour_ahead_or_to_midnight() -> None:
    """MONEY-2."""
    spec = pool(max_usd_per_day=40.0)
    assert spawned(plan(spec, (), waits(30), spent_today_usd=35.0)) == 5
    found = plan(spec, (), waits(30), spent_today_usd=39.9)
    assert spawned(found) == 0
    assert found.blocked == "pool p at its $/day ceiling of $40.00"
    late = NOON + timedelta(hours=11, minutes=54)
    assert spawned(plan(spec, (), waits(30), spent_today_usd=39.0, at=late)) == 10


def test_the_breaker_counts_failures_until_one_serves() -> None:
    """BREAKER-1."""

    def failures(age: float) -> tuple[SpawnOutcome, ...]:
        return tuple(
            SpawnOutcome(age_seconds=age + n, offer="one", fault="spawn_timeout")
            for n in range(BREAKER_FAILURES)
        )

    closed = plan(pool(), (), waits(30), outcomes=failures(1)[:-1])
    assert spawned(closed) == 10
    opened = plan(pool(), (), waits(30), outcomes=failures(1))
    assert spawned(opened) == 0
    assert "3 spawns failed in a row, the last by spawn timeout; one is tried" in opened.blocked
    words = (
        msgspec.structs.replace(failures(1)[0], age_seconds=0.5, reason="0/1 nodes are available"),
        *failures(1),
    )
    told = plan(pool(), (), waits(30), outcomes=words).blocked
    assert "the last by spawn timeout (0/1 nodes are available); one is tried" in told
    late = failures(PROBE_SECONDS + 1)
    assert spawned(plan(pool(), (), waits(30), outcomes=late)) == 1, "one tries"
    assert spawned(plan(pool(), (starting(0),), waits(30), outcomes=late)) == 0, "it is on its way"
    served = SpawnOutcome(age_seconds=0.5, offer="one")
    assert spawned(plan(pool(), (), waits(30), outcomes=(served, *failures(1)))) == 10
    assert spawned(plan(pool(), (), waits(30), outcomes=failures(10_000))) == 10, "long ago"


def test_an_offer_without_capacity_gives_way_to_the_next() -> None:
    """BREAKER-2."""
    spec = pool(offers=(ONE, EIGHT))
    trouble = {"one": OfferTrouble(refusals=1, age_seconds=1.0, reason="no capacity")}
    found = plan(spec, (), waits(9), trouble=trouble)
    assert [(s.offer, s.count) for s in kinds(found, Spawn)] == [("eight", 3)]
    alone = plan(pool(), (), waits(9), trouble=trouble)
    assert spawned(alone) == 0
    assert "offer one of pool p is asked again in" in alone.blocked
    assert "no capacity" in alone.blocked
    after = {"one": OfferTrouble(refusals=1, age_seconds=60.0)}
    assert spawned(plan(pool(), (), waits(9), trouble=after)) == 3


def test_a_provider_that_cannot_be_asked_or_asks_for_patience_is_asked_for_nothing() -> None:
    """GROW-4."""
    down = plan(pool(min=2), (), waits(9), unheard="401 Unauthorized")
    assert spawned(down) == 0
    assert down.blocked == (
        "pool p rents nothing, because its provider cannot be asked: 401 Unauthorized"
    )
    quiet = plan(
        pool(min=2), (), waits(9), quiet_seconds=40.0, quiet_reason="429 Too Many Requests"
    )
    assert spawned(quiet) == 0
    assert quiet.blocked == (
        "pool p leaves its provider in peace for 40 s, as that asked: 429 Too Many Requests"
    )


def test_a_paused_pool_spawns_nothing() -> None:
    assert spawned(plan(pool(min=2), (), waits(9), paused="the bill")) == 0


def test_a_full_cheap_pool_passes_its_jobs_on_also_when_money_or_the_breaker_holds_it() -> None:
    failed = tuple(SpawnOutcome(age_seconds=1, offer="one", fault="x") for _ in range(3))
    cheap = PoolView(spec=pool(name="cheap"), outcomes=failed)
    dear = PoolView(spec=pool(name="dear", offers=(EIGHT,)))
    plans = plan_fleet(FleetSnapshot(at=NOON, pools=(cheap, dear), waiting=(waits(9),)))
    assert [(p.pool, spawned(p)) for p in plans] == [("cheap", 0), ("dear", 3)]
