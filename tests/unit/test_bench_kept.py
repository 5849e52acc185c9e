"""The comparison of a run of the benchmarks with the run that the docs keep. Pure; nothing is measured here."""

from __future__ import annotations

import pytest
from bench.figures import Figures, Line, spread
from bench.kept import (
    HEADLINES,
    PAGE,
    KeptRow,
    KeptRun,
    is_worse,
    judge,
    list_rows,
    list_warnings,
    merge,
    put_between,
    read_direction,
    read_kept,
    render,
)

from tests.unit.sources import ROOT


def make_line(budget: str, value: float, limit: float | None = None, *, met: bool = True) -> Line:
    return Line(
        what="jobs",
        unit="ms",
        value=spread([value]),
        limit=None if limit is None else spread([limit]),
        budget=budget,
        met=met,
    )


def make_row(
    judged: float,
    budget: str = "<= 9 ms",
    *,
    case: str = "true",
    what: str = "jobs",
    met: bool = True,
) -> KeptRow:
    return KeptRow(
        case=case, what=what, budget=budget, judged=judged, shown=f"{judged:g} ms", met=met
    )


@pytest.mark.parametrize(
    ("budget", "figure"),
    [
        ("<= 3 x, <= 150 ms", 0.5),
        ("≤ 1.5 ×", 0.5),
        ("ratio >= 0.95", 0.5),
        ("<= 25 ms over", -50.0),
        ("<= 1 s", 50.0),
        (">= 400", 50.0),
    ],
)
def test_a_budget_says_which_figure_it_is_about(budget: str, figure: float) -> None:
    assert judge(make_line(budget, 50.0, 100.0)) == figure


def test_more_is_better_where_a_budget_says_at_least() -> None:
    assert [read_direction(b) for b in (">= 0.3 x", "p90 <= 2", "0", "> 1")] == [
        "more",
        "less",
        "less",
        "more",
    ]


def test_a_tenth_is_borne_and_more_is_not() -> None:
    assert not is_worse(make_row(1.0), make_row(1.1))
    assert is_worse(make_row(1.0), make_row(1.11))
    assert not is_worse(make_row(1.0), make_row(0.2))
    at_least = ">= 0.3 x"
    assert not is_worse(make_row(1.0, at_least), make_row(0.9, at_least))
    assert is_worse(make_row(1.0, at_least), make_row(0.89, at_least))
    assert not is_worse(make_row(1.0, at_least), make_row(5.0, at_least))


def test_a_row_that_was_nought_is_worse_when_it_is_not() -> None:
    assert is_worse(make_row(0.0, "<= 0"), make_row(1.0, "<= 0", met=False))
    assert not is_worse(make_row(0.0, "<= 0"), make_row(0.0, "<= 0"))


def test_a_budget_that_is_missed_now_is_worse_however_little_it_takes() -> None:
    assert is_worse(make_row(8.9), make_row(9.1, met=False))
    assert not is_worse(make_row(8.9), make_row(9.1, "<= 9.05 ms", met=False)), "a new budget"


def test_a_warning_names_both_figures_and_the_run() -> None:
    kept = KeptRun(commit="abc123", at="2026-11-28T10:00:00Z", rows=(make_row(2.0),))
    (warning,) = list_warnings(kept, [make_row(4.0)], ["true"])
    for words in ("true, jobs", "4 ms now", "2 ms in the run", "2026-11-28", "abc123", "<= 9 ms"):
        assert words in warning
    assert list_warnings(kept, [make_row(2.1)], ["true"]) == []


def test_a_kept_row_of_a_case_that_failed_is_told_and_one_that_was_not_run_is_not() -> None:
    kept = KeptRun(rows=(make_row(2.0), make_row(2.0, case="calls")))
    (warning,) = list_warnings(kept, [], ["true"])
    assert "true, jobs: not measured now" in warning


def test_what_was_measured_beside_a_row_is_not_its_name() -> None:
    kept = KeptRun(rows=(make_row(2.0, what="first paint of now (81 kB, 3 requests)"),))
    now = [make_row(4.0, what="first paint of now (95 kB, 4 requests)")]
    (warning,) = list_warnings(kept, now, ["true"])
    assert "4 ms now" in warning


def test_only_rows_with_a_budget_are_kept() -> None:
    lines = (make_line("<= 3 x", 50.0, 100.0), make_line("", 5.0))
    (row,) = list_rows([Figures(name="one", lines=lines), Figures(name="two", error="broke")])
    assert (row.case, row.judged, row.shown) == ("one", 0.5, "0.5 x (50 ms)")


def test_rows_of_cases_that_were_not_run_stay_and_say_of_which_commit() -> None:
    kept = KeptRun(commit="old", rows=(make_row(1.0), make_row(2.0, case="calls")))
    run = merge(kept, KeptRun(commit="new", rows=(make_row(3.0),)), ["true"])
    assert [(row.case, row.judged, row.commit) for row in run.rows] == [
        ("true", 3.0, ""),
        ("calls", 2.0, "old"),
    ]
    assert "Some rows are of old." in render(run)


def test_the_table_shows_what_misses_its_budget() -> None:
    case, begin, words = HEADLINES[0]
    run = KeptRun(
        commit="c", at="2026-11-28", rows=(make_row(7.0, case=case, what=begin, met=False),)
    )
    text = render(run)
    assert f"| {words} | <= 9 ms | **7 ms** |" in text
    assert f"1 rows have a budget, and 1 miss it (in `{case}`)." in text


def test_the_page_has_the_table_of_the_run_that_is_kept() -> None:
    page = (ROOT / PAGE).read_text()
    assert page == put_between(page, render(read_kept(ROOT)))
