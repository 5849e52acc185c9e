"""Scale down: what is given back, in which order, and what is kept."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fleet.actions import DrainHost, EndMachine, FreeHost, PoolPlan
from holdfast.core.states import InstanceState
from holdfast.moves.fleet.pools import effective_spec
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


def test_an_emptied_draining_host_is_ended_at_once_and_an_operators_after_its_idle_time() -> None:
    """POOL-4."""
    shrinking = host(0, "draining", draining_for_scale=True)
    found = plan(pool(), (shrinking, host(1, "draining", state_seconds=299.0)))
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h0"]
    found = plan(pool(), (host(1, "draining"), host(2, "draining", idle_seconds=299.0)))
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h1"], "h2 ran something until now"
    for busy in (
        host(0, "draining", draining_for_scale=True, leases=2),
        host(0, "draining", leases=2),
    ):
        assert not plan(pool(), (busy,)).actions


def test_a_machine_that_is_taken_away_makes_room_for_another_as_soon_as_it_runs_nothing() -> None:
    """POOL-4: with `max` machines, none had come in its place for the pool's idle time."""
    taken = host(0, "draining", lost="preempted", state_seconds=1.0)
    found = plan(pool(), (taken, host(1, "draining", lost="preempted", leases=1)))
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h0"]


def test_a_host_that_still_sends_outputs_is_kept_for_its_grace_and_no_longer() -> None:
    spec = pool(shutdown_grace_seconds=600.0)
    hosts = (host(0, outputs_seconds=599.0), host(1, outputs_seconds=600.0), host(2))
    assert sorted(drained(plan(spec, hosts))) == ["h1", "h2"]
    going = tuple(
        host(number, "draining", draining_for_scale=True, outputs_seconds=seconds)
        for number, seconds in enumerate((0.0, 599.0, 600.0, None))
    )
    found = plan(spec, going)
    assert [action.host_id for action in kinds(found, EndMachine)] == ["h2", "h3"]


def test_an_end_is_asked_for_until_it_is_confirmed_and_counted_once() -> None:
    over = host(0, "terminated", instance=InstanceState.ENDING)
    found = plan(pool(), (over,))
    assert len(kinds(found, EndMachine)) == 1
    assert found.summary.actions.hosts_ended == 0
    assert not plan(pool(), (host(0, "terminated", instance=InstanceState.GONE),)).actions


def test_a_host_that_takes_no_work_is_given_back_whatever_it_costs() -> None:
    """POOL-4: one without a price had been kept for ever, and with it a pool that was deleted."""
    free = {"usd_per_hour": 0.0}
    hosts = (host(0, "quarantined"), host(1, "quarantined", **free), host(2, "draining", **free))
    found = plan(pool(), hosts)
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h0", "h1", "h2"]
    young = {"state_seconds": 10.0, **free}
    hosts = (host(1, "quarantined", **young), host(2, "draining", **young))
    assert not plan(pool(), hosts).actions
    deleted = effective_spec(pool(), deleted=True)
    assert len(kinds(plan(deleted, hosts), EndMachine)) == 2


@given(
    states=st.lists(st.sampled_from(["active", "draining", "quarantined", "error"]), max_size=8),
    starts=st.integers(0, 4),
    most=st.integers(0, 6),
    queued=st.integers(0, 90),
)
def test_no_pool_has_more_hosts_than_its_max_nor_twice_as_many_machines(
    states: list[str], starts: int, most: int, queued: int
) -> None:
    """GROW-3: what drains or is in quarantine counts."""
    young = {"state_seconds": 1.0, "usd_per_hour": 0.0}
    hosts = [host(n, state, leases=n % 2, **young) for n, state in enumerate(states)]
    hosts += [starting(100 + n) for n in range(starts)]
    grown = spawned(plan(pool(max=most), tuple(hosts), waits(queued)))
    present = sum(not h.is_over for h in hosts)
    assert grown == 0 or (present + grown <= most and len(hosts) + grown <= 2 * most)


def test_a_pool_says_which_hosts_fill_it_without_working() -> None:
    """GROW-3."""
    hosts = (host(0, "quarantined", state_seconds=1.0), host(1, "draining", leases=1), host(2))
    found = plan(pool(max=3), hosts, waits(30))
    assert found.blocked == (
        "pool p at its max of 3 hosts, of which 1 is draining and 1 is in quarantine"
    )
    stubborn = tuple(host(n, "error", instance=InstanceState.ENDING) for n in range(2))
    found = plan(pool(max=1), stubborn, waits(3))
    assert spawned(found) == 0
    assert found.blocked == (
        "pool p has 2 machines that its provider has not ended yet, twice its max of 1"
    )


def test_at_the_days_ceiling_idle_hosts_go_below_min_and_work_goes_on() -> None:
    """MONEY-2."""
    spec = pool(min=2, max_usd_per_day=40.0)
    hosts = (host(0, leases=1), host(1, idle_seconds=1.0), starting(2))
    found = plan(spec, hosts, waits(9), spent_today_usd=40.0)
    assert drained(found) == ["h1"]
    assert [a.host_id for a in kinds(found, EndMachine)] == ["h2"]
    assert spawned(found) == 0


def test_a_paused_pool_gives_nothing_back() -> None:
    hosts = (host(0), host(1, "quarantined"), host(2, "draining"))
    assert not plan(pool(), hosts, paused="maintenance").actions


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
