"""What hours cost (PRICE-2, PRICE-3)."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.report.money import (
    HOUR_MS,
    HostPrice,
    Prices,
    find_changes,
    find_price,
    say_change,
)

AT = datetime(2026, 11, 20, tzinfo=UTC)
HOUR = timedelta(hours=1)
CLUSTER = HostPrice(host="", gpu_hour_usd=1.25)
dollars = st.floats(0.01, 1e4, allow_nan=False)


@given(dollars, st.integers(1, 16), st.integers(1, 256))
def test_all_gpus_of_a_rented_machine_cost_what_the_machine_costs(
    usd: float, gpus: int, slots: int
) -> None:
    price = find_price("h", gpus=gpus, cpu_slots=slots, labels={}, usd_per_hour=usd)
    prices = Prices([price])
    whole = sum(prices.find_usd("h", "gpu", HOUR_MS, AT) or 0.0 for _ in range(gpus))
    assert whole + (prices.find_usd("h", "cpu", HOUR_MS * slots, AT) or 0.0) == pytest.approx(usd)


@given(dollars, st.integers(1, 256))
def test_all_slots_of_a_rented_machine_without_gpus_cost_what_it_costs(
    usd: float, slots: int
) -> None:
    price = find_price("h", gpus=0, cpu_slots=slots, labels={}, usd_per_hour=usd)
    assert Prices([price, CLUSTER]).find_usd("h", "cpu", HOUR_MS * slots, AT) == pytest.approx(usd)


def test_an_own_host_costs_what_its_label_says_before_the_setting() -> None:
    labelled = find_price("a", gpus=8, cpu_slots=1, labels={"gpu_hour_usd": "2.5"}, usd_per_hour=0)
    plain = find_price("b", gpus=8, cpu_slots=1, labels={}, usd_per_hour=None)
    prices = Prices([labelled, plain, CLUSTER])
    assert [prices.find_usd(host, "gpu", 2 * HOUR_MS, AT) for host in "abc"] == [5.0, 2.5, 2.5]
    assert prices.find_usd("a", "cpu", HOUR_MS, AT) == 0.0


def test_hours_without_a_price_are_not_free() -> None:
    """PRICE-3"""
    assert Prices([HostPrice(host="a")]).find_usd("a", "gpu", HOUR_MS, AT) is None


@pytest.mark.parametrize("said", ["much", "-1", "nan", "inf", ""])
def test_a_label_that_is_no_price_is_none(said: str) -> None:
    found = find_price("a", gpus=1, cpu_slots=1, labels={"gpu_hour_usd": said}, usd_per_hour=None)
    assert found.gpu_hour_usd is None


def test_hours_keep_the_price_that_they_had() -> None:
    """PRICE-4"""
    first = msgspec.structs.replace(CLUSTER, since=AT)
    none = HostPrice(host="", since=AT + 2 * HOUR)
    prices = Prices([first, none])
    found = [prices.find_hour("h", "gpu", AT + n * HOUR) for n in (-1, 0, 1, 2, 3)]
    assert found == [None, 1.25, 1.25, None, None]
    assert prices.list_cuts(AT - HOUR, AT + 2 * HOUR) == [AT]


def test_a_correction_holds_from_its_time_on_whatever_was_written_before_it() -> None:
    """PRICE-4"""
    first = msgspec.structs.replace(CLUSTER, since=AT)
    second = HostPrice(host="", gpu_hour_usd=2.0, since=AT + 2 * HOUR)
    right = HostPrice(host="", gpu_hour_usd=9.0, since=AT + HOUR)
    prices = Prices([first, second]).add(right)
    assert [prices.find_hour("h", "gpu", AT + n * HOUR) for n in (0, 1, 3)] == [1.25, 9.0, 9.0]


def test_a_hosts_first_price_is_no_change_and_a_later_one_holds_from_then_on() -> None:
    one = HostPrice(host="a", gpu_hour_usd=2.0)
    unpriced = HostPrice(host="")
    (first,) = find_changes({}, [one, unpriced], AT)
    assert (first.before, first.after) == (None, one)
    assert find_changes({"a": one}, [one, unpriced], AT) == []
    dearer = msgspec.structs.replace(one, gpu_hour_usd=3.0)
    (change,) = find_changes({"a": one}, [dearer], AT)
    assert change.after.since == AT
    assert say_change(change) == (
        "an hour of a GPU of host a is $3 from 2026-11-20 00:00 UTC on; it was $2 before"
    )
    (change,) = find_changes({"": CLUSTER}, [HostPrice(host="")], AT)
    assert "is without a price from 2026-11-20" in say_change(change)
