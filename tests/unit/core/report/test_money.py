"""What hours cost (PRICE-2, PRICE-3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.report.money import HOUR_MS, HostPrice, Prices, find_price

dollars = st.floats(0.01, 1e4, allow_nan=False)


@given(dollars, st.integers(1, 16), st.integers(1, 256))
def test_all_gpus_of_a_rented_machine_cost_what_the_machine_costs(
    usd: float, gpus: int, slots: int
) -> None:
    price = find_price("h", gpus=gpus, cpu_slots=slots, labels={}, usd_per_hour=usd)
    prices = Prices([price], None)
    whole = sum(prices.find_usd("h", "gpu", HOUR_MS) or 0.0 for _ in range(gpus))
    assert whole + (prices.find_usd("h", "cpu", HOUR_MS * slots) or 0.0) == pytest.approx(usd)


@given(dollars, st.integers(1, 256))
def test_all_slots_of_a_rented_machine_without_gpus_cost_what_it_costs(
    usd: float, slots: int
) -> None:
    price = find_price("h", gpus=0, cpu_slots=slots, labels={}, usd_per_hour=usd)
    assert Prices([price], 3.0).find_usd("h", "cpu", HOUR_MS * slots) == pytest.approx(usd)


def test_an_own_host_costs_what_its_label_says_before_the_setting() -> None:
    labelled = find_price("a", gpus=8, cpu_slots=1, labels={"gpu_hour_usd": "2.5"}, usd_per_hour=0)
    plain = find_price("b", gpus=8, cpu_slots=1, labels={}, usd_per_hour=None)
    prices = Prices([labelled, plain], 1.25)
    assert [prices.find_usd(host, "gpu", 2 * HOUR_MS) for host in "abc"] == [5.0, 2.5, 2.5]
    assert prices.find_usd("a", "cpu", HOUR_MS) == 0.0


def test_hours_without_a_price_are_not_free() -> None:
    """PRICE-3"""
    assert Prices([HostPrice(host="a")], None).find_usd("a", "gpu", HOUR_MS) is None


@pytest.mark.parametrize("said", ["much", "-1", "nan", "inf", ""])
def test_a_label_that_is_no_price_is_none(said: str) -> None:
    found = find_price("a", gpus=1, cpu_slots=1, labels={"gpu_hour_usd": said}, usd_per_hour=None)
    assert found.gpu_hour_usd is None
