"""`core.ledger.tally`: an agent's cumulative count of what a task does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.tally import TallyClock, name_now
from holdfast.core.ledger.values import LedgerName

CALLS = st.lists(
    st.tuples(st.integers(-50, 1000), st.sampled_from(LedgerName), st.sampled_from("cbs")),
    max_size=20,
)


@given(CALLS)
def test_a_tally_holds_all_time_between_its_first_and_last_call(
    calls: list[tuple[int, LedgerName, str]],
) -> None:
    clock, now, counted = TallyClock().count(1_000, LedgerName.SETTING_UP), 1_000, 0
    for gap, name, what in calls:
        counted += max(0, gap)
        now += gap
        before = clock.tally.total_ms
        if what == "b":
            clock = clock.beat(now, 3, name)
        elif what == "s":
            clock = clock.stall(now)
        else:
            clock = clock.count(now, name)
        assert clock.tally.total_ms >= before
    assert clock.tally.total_ms == counted
    assert min(clock.tally.ms.values(), default=0) >= 0


def test_the_first_beat_names_the_time_before_it_loading() -> None:
    clock = TallyClock().count(0, LedgerName.SETTING_UP).count(10, LedgerName.UNMEASURED_BUSY)
    clock = clock.count(30, LedgerName.UNMEASURED_IDLE).beat(70, 5, LedgerName.KEPT)
    assert clock.tally.ms == {"setting_up": 10, "loading": 60}
    assert clock.beat(100, 9, LedgerName.KEPT).tally.ms["kept"] == 30
    assert (clock.tally.first_step, clock.beat(100, 3, LedgerName.KEPT).tally.step) == (5, 5)


def test_a_stall_is_the_silence_since_the_last_beat_but_for_saves() -> None:
    clock = TallyClock().count(0, LedgerName.UNMEASURED_BUSY).beat(10, 1, LedgerName.KEPT)
    clock = clock.beat(50, 2, LedgerName.CHECKPOINTING).count(60, LedgerName.KEPT).stall(100)
    assert clock.tally.ms == {"loading": 10, "kept": 40, "checkpointing": 10, "stalled": 40}
    assert clock.tally.now == LedgerName.DRAINING


def test_a_save_is_taken_from_what_the_task_does_and_never_from_more() -> None:
    clock = TallyClock().count(0, LedgerName.UNMEASURED_BUSY).beat(10, 1, LedgerName.KEPT)
    clock = clock.count(60, LedgerName.KEPT)
    assert clock.save(20).tally.ms == {"loading": 10, "kept": 30, "checkpointing": 20}
    assert clock.save(2_000).tally.ms == {"loading": 10, "kept": 0, "checkpointing": 50}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"stopping": True, "sections": ("checkpoint",)}, LedgerName.DRAINING),
        ({"sections": ("wait", "checkpoint"), "beaten": True}, LedgerName.CHECKPOINTING),
        ({"sections": ("wait",), "beaten": True, "idle": True}, LedgerName.WAITING),
        ({"began": False}, LedgerName.SETTING_UP),
        ({}, LedgerName.UNMEASURED_BUSY),
        ({"idle": True}, LedgerName.UNMEASURED_IDLE),
        ({"beaten": True, "idle": True, "sections": ("eval",)}, LedgerName.IDLE),
        ({"beaten": True}, LedgerName.KEPT),
    ],
)
def test_of_two_names_the_first_in_precedence_counts(
    given: dict[str, object], name: LedgerName
) -> None:
    defaults = {"began": True, "stopping": False, "beaten": False, "sections": (), "idle": False}
    assert name_now(**{**defaults, **given}) is name  # type: ignore[arg-type]  # a table of cases


def test_a_wait_that_a_rank_told_is_taken_from_its_work_and_from_no_more_than_that() -> None:
    clock = TallyClock().count(0, LedgerName.SETTING_UP).count(10, LedgerName.KEPT)
    clock = clock.beat(110, 1, LedgerName.KEPT)
    work = clock.tally.ms["kept"]
    clock, counted = clock.wait(30, 0)
    assert (counted, clock.tally.ms["kept"], clock.tally.ms["waiting"]) == (30, work - 30, 30)
    clock, counted = clock.wait(30_000, counted)
    assert (clock.tally.ms["kept"], clock.tally.ms["waiting"]) == (0, work)
    clock = clock.beat(310, 2, LedgerName.KEPT)
    clock, counted = clock.wait(30_000, counted)
    assert (counted, clock.tally.ms["waiting"]) == (work + 200, work + 200)
    assert clock.tally.total_ms == 310
    assert clock.wait(5, counted) == (clock, 5), "another process began to count"
