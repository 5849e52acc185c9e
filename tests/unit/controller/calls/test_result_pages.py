"""How many results go into one answer."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.calls import sets
from holdfast.wire.calls import CallResult


@given(st.lists(st.integers(0, 3 * sets.ANSWER_BYTES // 10), max_size=30))
def test_a_page_of_results_is_bounded_and_brings_something(sizes: list[int]) -> None:
    found = [CallResult(n, 1, "x" * size, 1, "") for n, size in enumerate(sizes)]
    kept = sets.fit_results(found)
    assert kept == found[: len(kept)]
    assert bool(kept) == bool(found)
    assert sets.measure_results(kept[:-1]) < sets.ANSWER_BYTES
    assert len(kept) == len(found) or sets.measure_results(kept) >= sets.ANSWER_BYTES
