"""Ids sort by time and keep their shape; keys read back what they wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import ENTROPY_BITS, ID_PATTERN, TaskKey, make_id

times = st.integers(0, 2**45 - 1)
entropies = st.integers(0, 2**ENTROPY_BITS - 1)


@given(times, entropies)
def test_shape(now_ms: int, entropy: int) -> None:
    assert ID_PATTERN.fullmatch(make_id(now_ms, entropy))


@given(st.tuples(times, entropies), st.tuples(times, entropies))
def test_ids_sort_as_their_times_and_differ_as_they_do(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    assert (make_id(*one) < make_id(*other)) == (one < other)
    assert (make_id(*one) == make_id(*other)) == (one == other)


def test_more_entropy_than_fits_is_cut() -> None:
    assert make_id(1, 2**64 + 5) == make_id(1, 5)


@given(times, entropies, st.integers(0, 65_535), st.integers(0, 2**62))
def test_a_key_reads_back(now_ms: int, entropy: int, rank: int, epoch: int) -> None:
    key = TaskKey(make_id(now_ms, entropy), rank, epoch)
    assert TaskKey.parse(str(key)) == key


@pytest.mark.parametrize("text", ["", "a", "a:1", "a:1:2:3", "a:x:1", "a:1:", "a::1"])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal"):
        TaskKey.parse(text)
