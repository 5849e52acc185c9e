"""How many executors a family gets: PLAN-1…6, by property and by example."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.calls.plan import (
    MAX_SUBMITTED,
    CallsNeed,
    FamilyPlan,
    FamilyRoom,
    FamilyState,
    count_wanted,
    failure_delay_seconds,
    plan_executors,
    plan_family,
)
from holdfast.core.calls.values import Family

CPU = Family(app="mytasks", queue="cpu")
GPU = Family(app="mytasks", queue="gpu", gpus=1)
COUNTS = st.integers(0, 50)
states = st.builds(
    lambda running, narrow, **fields: FamilyState(
        running=running, narrow=min(running, narrow), **fields
    ),
    running=COUNTS,
    narrow=COUNTS,
    starting=COUNTS,
    queued=COUNTS,
    failures=st.integers(0, 5),
    failed_seconds=st.floats(0, 200),
)
needs = st.builds(
    CallsNeed,
    family=st.sampled_from([CPU, GPU]),
    ready=st.integers(0, 100_000),
    head_age_seconds=st.floats(0, 1000),
    mean_seconds=st.one_of(st.just(0.0), st.floats(1e-5, 1e4)),
)
rooms = st.builds(
    FamilyRoom,
    slots=st.integers(0, 200),
    listed=st.booleans(),
    most=st.none() | st.integers(0, 100),
)


@given(need=needs, state=states, room=rooms, ahead=st.integers(0, 4))
@example(
    need=CallsNeed(family=CPU, ready=1, head_age_seconds=3.0),
    state=FamilyState(running=1, narrow=1),
    room=FamilyRoom(slots=3),
    ahead=0,
)
def test_never_more_than_room_calls_or_the_bound(
    need: CallsNeed, state: FamilyState, room: FamilyRoom, ahead: int
) -> None:
    plan = plan_family(need, state, room, ahead)
    new = plan.submit + plan.ahead
    assert min(plan.submit, plan.ahead, plan.withdraw) >= 0
    assert plan.withdraw <= state.queued
    if new:
        assert room.listed  # PLAN-3
        assert state.live + new <= room.bound  # PLAN-1
        assert plan.withdraw == 0  # PLAN-5 never fights with the rest
        assert state.failed_seconds >= failure_delay_seconds(state.failures)  # PLAN-4
    assert plan.submit <= need.ready
    if need.ready == 0:
        assert plan.submit == 0


@given(need=needs, room=rooms, ahead=st.integers(0, 4))
def test_what_was_planned_is_not_planned_again(
    need: CallsNeed, room: FamilyRoom, ahead: int
) -> None:
    """Those that start count: a second look before they run starts nothing more."""
    first = plan_family(need, FamilyState(), room, ahead)
    after = FamilyState(queued=first.submit + first.ahead, ahead=first.ahead)
    assert plan_family(need, after, room, ahead) == FamilyPlan(family=need.family)


def test_executors_without_the_memory_are_none_for_what_waits() -> None:
    need = CallsNeed(family=GPU, ready=1)
    narrow = FamilyState(running=2, narrow=2)
    assert plan_family(need, narrow, FamilyRoom(slots=4)).submit == 1
    assert plan_family(need, narrow, FamilyRoom(slots=2)).submit == 0  # no other GPU is left
    assert plan_family(need, FamilyState(running=2, narrow=1), FamilyRoom(slots=4)).submit == 0
    started = FamilyState(running=2, narrow=2, starting=1)
    assert plan_family(need, started, FamilyRoom(slots=4)).submit == 0


def test_where_calls_wait_for_calls_their_slots_are_lent() -> None:
    """PLAN-7: no more than are lent, none for calls that need a GPU, and a slot of its own first."""
    need, full = CallsNeed(family=CPU, ready=3, mean_seconds=9.0), FamilyRoom(slots=2)
    waiting = FamilyState(running=2, narrow=2)
    plan = plan_family(need, waiting, full, lendable=2)
    assert (plan.submit, plan.lent) == (0, 2)
    roomy = plan_family(need, waiting, FamilyRoom(slots=9), lendable=2)
    assert (roomy.submit, roomy.lent) == (3, 0)
    unplaced = FamilyState(running=2, narrow=2, queued=1)
    assert plan_family(need, unplaced, FamilyRoom(slots=9), lendable=2).lent == 2
    beside = FamilyState(running=4, narrow=2, lent=2)
    assert plan_family(need, beside, full, lendable=0) == FamilyPlan(family=CPU)
    gpu = CallsNeed(family=GPU, ready=3, mean_seconds=9.0)
    assert plan_family(gpu, waiting, full, lendable=2) == FamilyPlan(family=GPU)
    assert plan_family(need, FamilyState(running=2), full, lendable=9).lent == 3, "one a call"
    families = [CallsNeed(family=Family(app=f"a{n}", queue="cpu"), ready=3) for n in range(4)]
    rooms = {n.family.name: FamilyRoom(slots=0) for n in families}
    plans = plan_executors(families, {}, rooms, lendable=2)
    assert sum(plan.lent for plan in plans) == 2


@given(need=needs, state=states)
def test_ready_calls_are_worth_an_executor(need: CallsNeed, state: FamilyState) -> None:
    assert (count_wanted(need, state) > 0) == (need.ready > 0)


@pytest.mark.parametrize(
    ("ready", "mean", "wanted"), [(100_000, 0.001, 25), (10, 30.0, 10), (1, 0.0, 1), (100, 0.0, 1)]
)
def test_what_waits_is_to_be_done_in_a_few_seconds(ready: int, mean: float, wanted: int) -> None:
    assert (
        count_wanted(CallsNeed(family=CPU, ready=ready, mean_seconds=mean), FamilyState()) == wanted
    )


def test_calls_of_unknown_length_that_wait_double_the_executors() -> None:
    waiting = CallsNeed(family=CPU, ready=100, head_age_seconds=5.0)
    assert count_wanted(waiting, FamilyState(running=4)) == 8
    assert count_wanted(waiting, FamilyState(running=4, starting=4)) == 1  # until those run
    young = CallsNeed(family=CPU, ready=100, head_age_seconds=0.5)
    assert count_wanted(young, FamilyState(running=4)) == 1


def test_gpu_calls_start_wider_because_they_are_longer() -> None:
    assert count_wanted(CallsNeed(family=GPU, ready=16), FamilyState()) == 4


def test_some_are_kept_ahead_and_stay() -> None:
    idle, room = CallsNeed(family=CPU, ready=0), FamilyRoom(slots=4)
    assert plan_family(idle, FamilyState(), room, 1).ahead == 1
    kept = FamilyState(running=1, ahead=1)
    assert plan_family(idle, kept, room, 1) == FamilyPlan(family=CPU)


def test_queued_executors_that_nothing_waits_for_are_withdrawn() -> None:
    idle, room = CallsNeed(family=CPU, ready=0), FamilyRoom(slots=4)
    assert plan_family(idle, FamilyState(running=1, queued=3), room).withdraw == 3
    assert plan_family(idle, FamilyState(queued=1, ahead=1), room, 1).withdraw == 0


def test_those_that_fail_come_ever_more_rarely() -> None:
    assert [failure_delay_seconds(n) for n in (0, 1, 2, 3, 4, 40)] == [0, 0, 2, 4, 8, 60]


def test_one_round_is_bounded_and_the_oldest_goes_first() -> None:
    families = [Family(app=f"a{n}", queue="cpu") for n in range(4)]
    waiting = [
        CallsNeed(family=f, ready=1000, mean_seconds=1.0, head_age_seconds=float(n))
        for n, f in enumerate(families)
    ]
    wide = {f.name: FamilyRoom(slots=200) for f in families[1:]}
    plans = plan_executors(waiting, {}, wide)
    assert [p.family.app for p in plans] == ["a3", "a2"]
    assert sum(p.submit for p in plans) == MAX_SUBMITTED
