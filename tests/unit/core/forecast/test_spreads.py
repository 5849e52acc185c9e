from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.forecast.spreads import Spread, foretell_left, spread_of

TIMES = st.floats(0.0, 1e6)


@given(TIMES, st.lists(TIMES, min_size=3), st.none() | TIMES, st.none() | TIMES, st.none() | TIMES)
def test_the_time_that_is_left_is_positive_and_ends_with_the_time_limit(
    ran: float, past: list[float], limit: float | None, expected: float | None, pace: float | None
) -> None:
    for known in (None, spread_of(past)):
        left = foretell_left(ran, known, limit, expected, pace)
        assert list(left.seconds) == sorted(left.seconds)
        assert left.seconds[0] > 0
        if limit is not None:
            assert left.seconds[-1] <= max(1.0, limit - ran)


def test_only_those_that_ran_for_longer_tell_how_long_a_job_still_runs() -> None:
    past = spread_of([10.0, 20.0, 100.0, 200.0])
    assert foretell_left(50.0, past, None, None, None) == Spread((50.0, 150.0))


def test_a_jobs_own_progress_goes_before_its_past() -> None:
    left = foretell_left(50.0, spread_of([10.0, 20.0, 30.0]), None, None, 1000.0)
    assert 800 < left.seconds[0] < 1000 < left.seconds[-1] < 1300


def test_two_past_times_tell_nothing() -> None:
    assert spread_of([1.0, 2.0]) is None


def test_a_draw_lies_between_the_times_in_proportion() -> None:
    spread = Spread((0.0, 10.0))
    assert [spread.draw(part) for part in (0.1, 0.5, 0.9)] == [0.0, 5.0, 10.0]
