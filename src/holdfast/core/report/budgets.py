"""Budgets: what becomes of a project that has spent so much of its month.

SPEND-1  A threshold, 80 % or the whole budget, is told once a month, and again only where the budget
          was raised so far that the spend had fallen well below it.
SPEND-2  Jobs are held, or stopped, only while the month's spend is at the budget or over it; a new
          month, a higher budget or another choice lets them start with the next judgement.
SPEND-3  What is stopped for money is queued again at no charge. Nothing is stopped where the choice
          is not `preempt`.
"""

from __future__ import annotations

from datetime import datetime

import msgspec

NOTICE_PERCENT = 80
FULL_PERCENT = 100
_SURE = 0.99  # a threshold counts as left where the spend is under this part of it


class MonthBudget(msgspec.Struct, frozen=True, kw_only=True):
    """A project's budget in force, in dollars a calendar month (UTC). at: notice, hold, preempt."""

    usd: float
    at: str = "notice"


class Spend(msgspec.Struct, frozen=True, kw_only=True):
    """A project's spending in a month, as it is on record. month: as 2026-11, "" before the
    first record. told: the percentage that people were last told of, 0 for none. held: why no job of
    the project may start, "" where jobs may."""

    month: str = ""
    usd: float = 0.0
    told: int = 0
    held: str = ""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A judgement: the record from now on, what people are to be told ("" for nothing), and whether
    the project's running jobs are to be stopped."""

    spend: Spend
    tell: str = ""
    stop: bool = False


def name_month(at: datetime) -> str:
    """Return the month of an instant, as 2026-11."""
    return f"{at:%Y-%m}"


def begin_month(at: datetime) -> datetime:
    """Return the first instant of the month."""
    return at.replace(day=1, hour=0, minute=0, second=0, microsecond=0)


def judge(
    project: str, budget: MonthBudget | None, before: Spend, usd: float, at: datetime
) -> Judged:
    """Judge what a project has spent in the month of `at` (SPEND-1…3)."""
    month = name_month(at)
    if budget is None:
        return Judged(spend=Spend())
    told = before.told if before.month == month else 0
    reached = _find_reached(usd, budget.usd)
    if told > _find_reached(usd / _SURE, budget.usd):
        told = reached
    full = reached >= FULL_PERCENT
    held = _say_held(project, budget, at) if full and budget.at != "notice" else ""
    tell = _say_reached(project, budget, usd, reached, at) if reached > told else ""
    spend = Spend(month=month, usd=usd, told=max(told, reached), held=held)
    return Judged(spend=spend, tell=tell, stop=bool(held) and budget.at == "preempt")


def _find_reached(usd: float, budget_usd: float) -> int:
    """Return the highest threshold, in percent, that the spend has reached."""
    if usd >= budget_usd:
        return FULL_PERCENT
    return NOTICE_PERCENT if usd >= budget_usd * NOTICE_PERCENT / 100 else 0


def say_nothing_to_spend(project: str, at: str) -> str:
    """Write what a budget of $0 does, from its first moment on. at: notice, hold, preempt."""
    then = {
        "notice": "its jobs run all the same, and people are told once a month (at_budget=notice)",
        "hold": "no job of it starts (at_budget=hold)",
        "preempt": "no job of it starts, and running ones are stopped and wait (at_budget=preempt)",
    }
    return f"project {project} has a budget of $0.00, which is spent at once: {then[at]}"


def _say_held(project: str, budget: MonthBudget, at: datetime) -> str:
    if budget.usd <= 0:
        return say_nothing_to_spend(project, budget.at)
    whole = f"project {project} has spent its budget of ${budget.usd:,.2f} for {at:%B %Y}"
    return f"{whole} (budget_usd_per_month, at_budget={budget.at})"


def _say_reached(project: str, budget: MonthBudget, usd: float, reached: int, at: datetime) -> str:
    if budget.usd <= 0:
        return say_nothing_to_spend(project, budget.at)
    share = int(100 * usd / budget.usd)
    spent = f"project {project} has spent ${usd:,.2f} of its ${budget.usd:,.2f} for {at:%B %Y} ({share} %)"
    if reached < FULL_PERCENT:
        then = {
            "notice": "",
            "hold": "; at 100 % no further job of it starts",
            "preempt": "; at 100 % its running jobs are stopped and wait",
        }
        return spent + then[budget.at]
    now = {
        "notice": "; its jobs go on, because at_budget is notice",
        "hold": "; no further job of it starts",
        "preempt": "; its running jobs are stopped, and wait with the others",
    }
    return spent + now[budget.at]
