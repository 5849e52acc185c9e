"""How many calls an executor asks for."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.calls.batches import AHEAD_SECONDS, BATCH_SECONDS, MAX_BATCH_CALLS, choose_want

MEANS = st.floats(0.0, 1e4)
HANDS = st.integers(0, 3000)
GPUS = st.integers(0, 8)


@given(MEANS, HANDS, GPUS)
def test_what_is_in_hand_is_never_more_than_two_batches(mean: float, hand: int, gpus: int) -> None:
    """WANT-1, WANT-2."""
    want = choose_want(mean, hand, gpus)
    assert 0 <= want <= MAX_BATCH_CALLS
    if want > 1:
        assert want * mean <= BATCH_SECONDS
        assert hand + want <= 2 * want
    elif want and mean > BATCH_SECONDS:
        assert hand + want <= (1 if gpus or mean >= AHEAD_SECONDS else 2)


@given(MEANS, GPUS)
def test_an_idle_executor_always_asks(mean: float, gpus: int) -> None:
    assert choose_want(mean, 0, gpus) >= 1


@given(MEANS, HANDS, GPUS)
def test_the_more_is_in_hand_the_less_is_wanted(mean: float, hand: int, gpus: int) -> None:
    assert choose_want(mean, hand + 1, gpus) <= choose_want(mean, hand, gpus)


def test_the_first_batch_is_one_call() -> None:
    assert [choose_want(0.0, hand, 0) for hand in (0, 1)] == [1, 0]


def test_calls_of_a_millisecond_come_in_fifties_and_the_next_fifty_while_these_run() -> None:
    assert [choose_want(0.001, hand, 0) for hand in (0, 50, 51)] == [50, 50, 0]


def test_of_longer_calls_one_is_held_ahead_without_gpus() -> None:
    assert [choose_want(0.3, hand, 0) for hand in (0, 1, 2)] == [1, 1, 0]
    assert [choose_want(0.3, hand, 1) for hand in (0, 1)] == [1, 0]
    assert [choose_want(30.0, hand, 0) for hand in (0, 1)] == [1, 0]
