"""Scale down: what is given back, in which order, and what is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fleet.actions import DrainHost, EndMachine, FreeHost, PoolPlan
from holdfast.core.states import InstanceState
from tests.unit.core.fleet.fleets import (
    EIGHT,
    ONE,
    host,
    kinds,
    plan,
    pool,
    spawned,
    starting,
    waits,
)


def drained(found: PoolPlan) -> list[str]:
    return [action.host_id for action in kinds(found, DrainHost)]


def test_idle_hosts_above_min_go_the_dearest_and_newest_first() -> None:
    hosts = (
        host(0, intent_seconds=900.0),
        host(1, intent_seconds=500.0),
        host(2, usd_per_hour=5.0),
        host(3, leases=1),
    )
    assert drained(plan(pool(min=0), hosts)) == ["h2", "h1", "h0"]
    assert drained(plan(pool(min=3), hosts)) == ["h2"]
    assert drained(plan(pool(min=4), hosts)) == []


def test_idle_counts_from_the_last_lease() -> None:
    assert drained(plan(pool(), (host(0, idle_seconds=299.0),))) == []
    assert drained(plan(pool(), (host(0, idle_seconds=300.0),))) == ["h0"]


def test_what_waits_keeps_its_hosts() -> None:
    hosts = tuple(host(n) for n in range(4))
    assert len(drained(plan(pool(), hosts, waits(9)))) == 1
    wide = pool(offers=(ONE, EIGHT))
    mixed = (host(0), host(1, offer="eight", usd_per_hour=9.0))
    assert drained(plan(wide, mixed, waits(1, gpus=8))) == ["h0"], "the dear one is needed"


def test_excess_starting_hosts_go_before_idle_ones_and_not_at_once() -> None:
    old, fresh = starting(1, intent_seconds=200.0), starting(2, intent_seconds=20.0)
    found = plan(pool(min=1), (host(0), old, fresh))
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h1"]
    assert [a.host_id for a in kinds(found, FreeHost)] == ["h1"]
    assert drained(found) == ["h0"], "the fresh one will serve as the least there is"


def test_an_emptied_draining_host_is_ended_and_an_operators_is_left() -> None:
    shrinking = host(0, "draining", draining_for_scale=True)
    found = plan(pool(), (shrinking, host(1, "draining")))
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h0"]
    busy = host(0, "draining", draining_for_scale=True, leases=2)
    assert not plan(pool(), (busy,)).actions


def test_an_end_is_asked_for_until_it_is_confirmed_and_counted_once() -> None:
    over = host(0, "terminated", instance=InstanceState.ENDING)
    found = plan(pool(), (over,))
    assert len(kinds(found, EndMachine)) == 1
    assert found.summary.actions.workers_terminated == 0
    assert not plan(pool(), (host(0, "terminated", instance=InstanceState.GONE),)).actions


def test_a_rented_host_in_quarantine_is_given_back_and_an_owned_one_is_kept() -> None:
    found = plan(pool(), (host(0, "quarantined"), host(1, "quarantined", usd_per_hour=0.0)))
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h0"]


def test_at_the_days_ceiling_idle_hosts_go_below_min_and_work_goes_on() -> None:
    """MONEY-2."""
    spec = pool(min=2, max_usd_per_day=40.0)
    hosts = (host(0, leases=1), host(1, idle_seconds=1.0), starting(2))
    found = plan(spec, hosts, waits(9), spent_today_usd=40.0)
    assert drained(found) == ["h1"]
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h2"]
    assert spawned(found) == 0


def test_a_paused_pool_gives_nothing_back() -> None:
    assert not plan(pool(), (host(0),), paused="maintenance").actions


@given(
    idle=st.integers(0, 12),
    busy=st.integers(0, 12),
    starts=st.integers(0, 6),
    queued=st.integers(0, 60),
    lowest=st.integers(0, 6),
    buffer=st.integers(0, 3),
)
def test_a_cycle_never_both_grows_and_shrinks_and_its_successor_is_content(
    idle: int, busy: int, starts: int, queued: int, lowest: int, buffer: int
) -> None:
    """Nothing flaps: once the plan is carried out, the same snapshot asks for nothing."""
    spec = pool(min=lowest, max=20, buffer=buffer)
    hosts = [host(n) for n in range(idle)] + [host(100 + n, leases=1) for n in range(busy)]
    hosts += [starting(200 + n, intent_seconds=250.0) for n in range(starts)]
    found = plan(spec, tuple(hosts), waits(queued))
    grown = spawned(found)
    gone = {a.host_id for a in found.actions if isinstance(a, (DrainHost, EndMachine))}
    assert not (grown and gone)
    kept = [h for h in hosts if h.host_id not in gone]
    assert len(kept) >= min(lowest, len(hosts))
    after = (*kept, *(starting(300 + n) for n in range(grown)))
    again = plan(spec, tuple(after), waits(queued))
    assert not again.actions
