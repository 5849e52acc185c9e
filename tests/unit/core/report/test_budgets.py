"""What becomes of a project that has spent so much of its month (SPEND-1…3)."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.report.budgets import Judged, MonthBudget, Spend, begin_month, judge, name_month

AT = datetime(2026, 11, 20, 12, tzinfo=UTC)
LATER = datetime(2026, 12, 1, tzinfo=UTC)
dollars = st.floats(0, 1e6, allow_nan=False)


def _judge(
    usd: float, before: Spend | None = None, *, budget: float = 500, at: str = "hold"
) -> Judged:
    return judge("vision", MonthBudget(usd=budget, at=at), before or Spend(), usd, AT)


def test_nothing_is_told_below_80_percent() -> None:
    found = _judge(399.99)
    assert (found.tell, found.spend.held, found.stop) == ("", "", False)


@pytest.mark.parametrize(
    ("at", "then"),
    [
        ("notice", "(80 %)"),
        ("hold", "no further job of it starts"),
        ("preempt", "its running jobs are stopped and wait"),
    ],
)
def test_80_percent_is_told_with_what_follows_at_100(at: str, then: str) -> None:
    found = _judge(400, at=at)
    start = "project vision has spent $400.00 of its $500.00 for November 2026 (80 %)"
    assert found.tell.startswith(start)
    assert found.tell.endswith(then)
    assert not found.spend.held


@pytest.mark.parametrize("at", ["notice", "hold", "preempt"])
def test_the_whole_budget_holds_or_stops_by_choice(at: str) -> None:
    found = _judge(512.3, Spend(month="2026-11", told=80), at=at)
    assert "$512.30 of its $500.00 for November 2026 (102 %)" in found.tell
    assert bool(found.spend.held) is (at != "notice")
    assert found.stop is (at == "preempt")


def test_the_sentence_of_a_held_project_names_its_settings() -> None:
    assert _judge(500).spend.held == (
        "project vision has spent its budget of $500.00 for November 2026 "
        "(budget_usd_per_month, at_budget=hold)"
    )


@given(st.lists(dollars, max_size=20), st.sampled_from(["notice", "hold", "preempt"]))
def test_each_threshold_is_told_once_a_month(spends: list[float], at: str) -> None:
    before, told = Spend(), []
    for usd in sorted(spends):
        found = _judge(usd, before, at=at)
        told += [found.spend.told] if found.tell else []
        assert _judge(usd, found.spend, at=at).tell == ""
        before = found.spend
    assert told in ([], [80], [100], [80, 100])


@given(dollars, dollars, st.sampled_from(["hold", "preempt"]))
def test_jobs_are_held_exactly_while_the_spend_is_at_the_budget(
    usd: float, budget: float, at: str
) -> None:
    found = _judge(usd, Spend(month="2026-11", told=100, held="before"), budget=budget, at=at)
    assert bool(found.spend.held) is (usd >= budget)


def test_a_new_month_releases_the_project_and_tells_again() -> None:
    before = _judge(500).spend
    found = judge("vision", MonthBudget(usd=500, at="hold"), before, 3.0, LATER)
    assert (found.spend.held, found.spend.told, found.spend.month) == ("", 0, "2026-12")
    assert "December 2026" in judge("vision", MonthBudget(usd=2), found.spend, 3.0, LATER).tell


def test_a_month_that_begins_with_much_is_told_of_though_the_last_one_was() -> None:
    before = _judge(500).spend
    found = judge("vision", MonthBudget(usd=500), before, 450.0, LATER)
    assert "$450.00 of its $500.00 for December 2026 (90 %)" in found.tell


def test_a_raised_budget_releases_the_project_and_is_told_of_again() -> None:
    raised = _judge(510, _judge(510).spend, budget=1000)
    assert (raised.spend.held, raised.spend.told) == ("", 0)
    assert _judge(800, raised.spend, budget=1000).tell


def test_a_spend_that_a_correction_lowers_a_little_is_not_told_twice() -> None:
    before = _judge(400.01).spend
    corrected = _judge(399.99, before).spend
    assert _judge(400.01, corrected).tell == ""


def test_a_budget_of_nothing_is_spent_at_once() -> None:
    found = _judge(0, budget=0)
    said = "project vision has a budget of $0.00, which is spent at once: "
    assert found.spend.held == f"{said}no job of it starts (at_budget=hold)"
    told = _judge(0, budget=0, at="notice")
    assert told.tell.startswith(f"{said}its jobs run all the same")


def test_without_a_budget_nothing_is_held_or_told() -> None:
    found = judge("vision", None, Spend(month="2026-11", told=100, held="x"), 9e9, AT)
    assert found == Judged(spend=Spend())


def test_a_month_begins_at_its_first_midnight() -> None:
    assert begin_month(AT) == datetime(2026, 11, 1, tzinfo=UTC)
    assert name_month(AT) == "2026-11"
