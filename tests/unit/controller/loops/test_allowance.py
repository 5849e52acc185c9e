"""The token bucket of the retry rate limit (RATE-1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.runtime.leading.allowance import Allowance

rates = st.floats(0.01, 1000)
# What to ask for, and how long after the look before.
looks = st.lists(st.tuples(st.integers(0, 2000), st.floats(0, 100)), min_size=1, max_size=40)


@given(rates, looks)
def test_never_more_than_the_rate_and_one_seconds_worth(
    rate: float, asked: list[tuple[int, float]]
) -> None:
    allowance, now, gone = Allowance(), 0.0, 0
    for wanted, later in asked:
        now += later
        room = allowance.refill(rate, now)
        assert room is not None
        taken = min(wanted, room)
        allowance.spend(taken)
        gone += taken
        assert gone <= rate * now + max(1.0, rate) + 1e-6


@given(rates, st.floats(0, 1e6))
def test_what_is_unused_piles_up_to_one_seconds_worth(rate: float, idle: float) -> None:
    allowance = Allowance()
    allowance.refill(rate, 0.0)
    room = allowance.refill(rate, idle)
    assert room is not None
    assert 1 <= room <= max(1, int(rate + 1e-6))


@given(rates)
def test_the_wait_it_names_is_enough(rate: float) -> None:
    allowance = Allowance()
    room = allowance.refill(rate, 5.0)
    assert room is not None
    allowance.spend(room)
    assert (allowance.refill(rate, 5.0 + allowance.wait_seconds(rate) * 1.0001) or 0) >= 1


def test_no_limit_leaves_no_debt_behind() -> None:
    allowance = Allowance()
    assert allowance.refill(None, 0.0) is None
    allowance.spend(100_000)
    assert allowance.refill(10.0, 1.0) == 10


def test_a_slow_rate_still_lets_one_through() -> None:
    allowance = Allowance()
    assert allowance.refill(0.01, 0.0) == 1
    allowance.spend(1)
    assert allowance.refill(0.01, 99.0) == 0
    assert allowance.refill(0.01, 101.0) == 1
