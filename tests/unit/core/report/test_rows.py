"""The lines of a report (HOURS-1, HOURS-2)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ledger.values import LedgerName, LedgerSum
from holdfast.core.report.money import HOUR_MS, HostPrice, PricedSpan, Prices
from holdfast.core.report.rows import ReportRow, list_asked, make_rows

AT = datetime(2026, 11, 1, tzinfo=UTC)


def _prices(*prices: HostPrice) -> PricedSpan:
    return PricedSpan(Prices(prices), AT, AT + timedelta(days=2))


H1 = HostPrice(host="h1", gpu_hour_usd=2.0)
PRICES = _prices(H1, HostPrice(host="h2"), HostPrice(host="", gpu_hour_usd=1.0))
UNPRICED = _prices(H1)


def _sum(owner: str, project: str, host: str, **hours: float) -> LedgerSum:
    ms = {LedgerName(name): round(value * HOUR_MS) for name, value in hours.items()}
    return LedgerSum(key=(owner, project, host), ms=ms)


def _rows(*sums: LedgerSum, prices: PricedSpan = PRICES) -> tuple[list[ReportRow], ReportRow]:
    return make_rows(sums, ("owner",), prices, "gpu")


def test_the_ledger_is_asked_by_project_and_host_as_well() -> None:
    assert list_asked(("owner",)) == ("owner", "project", "host")
    assert list_asked(("host", "time")) == ("host", "time", "project")


def test_hours_of_one_owner_on_two_hosts_are_one_line_with_both_prices() -> None:
    (row,), total = _rows(
        _sum("ada", "p", "h1", kept=3, stalled=1), _sum("ada", "q", "h2", kept=1, lost=1)
    )
    assert (row.key, row.hours, row.goodput) == (("ada",), 6.0, 4 / 6)
    assert row.by_name == {"stalled": 1.0, "lost": 1.0, "kept": 4.0}
    assert (row.usd, row.useful_usd, row.lost_usd, row.unmeasured_usd) == (10.0, 7.0, 3.0, 0.0)
    assert total.hours == 6.0


def test_a_job_that_never_beats_has_no_goodput() -> None:
    """HOURS-2"""
    (row,), _ = _rows(_sum("ada", "p", "h1", unmeasured_busy=3, unmeasured_idle=1))
    assert row.goodput is None
    assert (row.usd, row.unmeasured_usd) == (8.0, 8.0)
    (started,), _ = _rows(_sum("ada", "p", "h1", unmeasured_busy=3, setting_up=1))
    assert started.goodput is None, "it began, and never beat"
    (stuck,), _ = _rows(_sum("ada", "p", "h1", setting_up=1))
    assert stuck.goodput == 0.0


def test_unmeasured_hours_change_no_goodput() -> None:
    (row,), _ = _rows(_sum("ada", "p", "h1", kept=3, loading=1, unmeasured_busy=99))
    assert row.goodput == 0.75


def test_what_no_job_held_is_told_apart() -> None:
    rows, total = _rows(
        _sum("", "", "h1", unused=5, unfit=1), _sum("ada", "p", "h1", kept=1, unfit=1)
    )
    assert [row.key for row in rows] == [("ada",), ("",)]
    assert (rows[1].hours, rows[1].idle_hours, rows[1].idle_usd) == (
        0.0,
        {"unfit": 1.0, "unused": 5.0},
        12.0,
    )
    assert (total.usd, total.idle_usd) == (4.0, 12.0)


def test_hours_without_a_price_are_counted_apart() -> None:
    """PRICE-3"""
    (row,), _ = _rows(_sum("ada", "p", "h9", kept=2), prices=UNPRICED)
    assert (row.usd, row.unpriced_hours) == (0.0, 2.0)


def test_hours_of_two_prices_are_one_line() -> None:
    """PRICE-4"""
    later = msgspec.structs.replace(H1, gpu_hour_usd=5.0, since=AT + timedelta(days=1))
    ms = {LedgerName.KEPT: HOUR_MS}
    sums = [LedgerSum(key=("ada", "p", "h1", place), ms=ms) for place in "01"]
    (row,), _ = make_rows(sums, ("owner",), _prices(H1, later), "gpu")
    assert (row.hours, row.usd) == (2.0, 7.0)


def test_lines_of_time_are_in_its_order_and_others_by_their_hours() -> None:
    sums = [
        LedgerSum(key=(day, "p", "h1"), ms={LedgerName.KEPT: ms})
        for day, ms in (("2026-11-02", 9), ("2026-11-01", 1))
    ]
    by_day, _ = make_rows(sums, ("time",), PRICES, "gpu")
    assert [row.key[0] for row in by_day] == ["2026-11-01", "2026-11-02"]
    by_owner, _ = make_rows(sums, ("owner",), PRICES, "gpu")
    assert [row.key[0] for row in by_owner] == ["2026-11-02", "2026-11-01"]


names = st.dictionaries(st.sampled_from(LedgerName), st.integers(0, 10**9), max_size=6)
sums = st.lists(
    st.builds(
        lambda owner, project, host, ms, provisional: LedgerSum(
            key=(owner, project, host), ms=ms, provisional=provisional
        ),
        st.sampled_from(["ada", "bob", ""]),
        st.sampled_from(["p", "q", ""]),
        st.sampled_from(["h1", "h2", "h3"]),
        names,
        st.booleans(),
    ),
    max_size=12,
)


@given(sums)
def test_nothing_is_left_out_and_nothing_is_told_twice(found: list[LedgerSum]) -> None:
    """HOURS-1"""
    for prices in (PRICES, UNPRICED):
        rows, total = make_rows(found, ("owner",), prices, "gpu")
        whole = sum(each.total_ms for each in found) / HOUR_MS
        for row in (*rows, total):
            assert row.hours == pytest.approx(sum(row.by_name.values()))
            parts = row.useful_usd + row.lost_usd + row.unmeasured_usd
            assert row.usd == pytest.approx(parts)
            assert row.goodput is None or 0 <= row.goodput <= 1
        assert sum(r.hours + sum(r.idle_hours.values()) for r in rows) == pytest.approx(whole)
        assert sum(r.usd + r.idle_usd for r in rows) == pytest.approx(total.usd + total.idle_usd)
        assert total.provisional is any(each.provisional for each in found)
