"""Calls as ranges: nothing is lost, doubled or moved by cutting."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.calls.values import MAX_INLINE_BYTES
from holdfast.moves.calls.pieces import (
    BATCH_PIECES,
    PAGE_BYTES,
    PAGE_CALLS,
    Piece,
    add_ranges,
    count_calls,
    cut_heads,
    cut_positions,
    find_position,
    list_ranges,
    make_pages,
    subtract_ranges,
)
from holdfast.wire.frames import MAX_FRAME_BYTES

SPANS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 12)).map(lambda s: (s[0], s[0] + s[1])), max_size=6
)
SIZES = st.lists(st.integers(1, 9), max_size=6)


def numbers(spans: list[tuple[int, int]]) -> list[int]:
    return [i for first, last in spans for i in range(first, last)]


def pieces(sizes: list[int]) -> list[Piece]:
    return [Piece(n, 5, 5 + size, 0, 50, n, 0, 0.0) for n, size in enumerate(sizes)]


def calls(found: list[Piece]) -> list[tuple[int, int]]:
    return [(p.set_n, i) for p in found for i in range(p.first, p.last)]


@given(SPANS, SPANS)
def test_union(some: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    found = add_ranges(add_ranges((), some), more)
    assert numbers(found) == sorted(set(numbers(some) + numbers(more)))
    assert all(a[1] < b[0] for a, b in itertools.pairwise(found))


@given(st.integers(0, 30), st.integers(0, 30), SPANS)
def test_difference(first: int, size: int, gone: list[tuple[int, int]]) -> None:
    left = subtract_ranges((first, first + size), gone)
    assert numbers(left) == sorted(set(range(first, first + size)) - set(numbers(gone)))


@given(st.sets(st.integers(0, 50)))
def test_numbers_as_ranges(found: set[int]) -> None:
    assert numbers(list_ranges(sorted(found))) == sorted(found)


@given(SIZES, st.integers(0, 60))
def test_heads_are_cut_in_order(sizes: list[int], want: int) -> None:
    heads = pieces(sizes)
    taken, rest = cut_heads(heads, want)
    assert calls(taken) == calls(heads[:BATCH_PIECES])[:want]
    whole = heads[len(taken) :]
    assert calls(taken) + calls(rest) + calls(whole) == calls(heads)
    assert all(piece.place in {head.place for head in heads} for piece in rest), "its row stays"


def test_a_batch_of_the_largest_arguments_fits_into_a_frame() -> None:
    args = ["x" * MAX_INLINE_BYTES] * 200
    pages = make_pages(args, 0, [(0, len(args))])
    taken, _ = cut_heads(pieces([last - first for first, last, _ in pages]), len(args))
    assert taken
    sent = sum(sum(map(len, page)) for _, _, page in pages[: len(taken)])
    assert sent < MAX_FRAME_BYTES - 1024 * 1024


@given(SIZES, st.integers(0, 40), st.integers(0, 40))
def test_positions(sizes: list[int], first: int, last: int) -> None:
    batch = pieces(sizes)
    assert calls(cut_positions(batch, (first, last))) == calls(batch)[first:last]
    found = find_position(batch, first)
    if first < count_calls(batch):
        assert found is not None
        assert (found[0].set_n, found[1]) == calls(batch)[first]
    else:
        assert found is None


@given(st.lists(st.integers(0, 3 * PAGE_BYTES // 4), max_size=9), st.integers(0, 50), SPANS)
def test_pages(sizes: list[int], first: int, gone: list[tuple[int, int]]) -> None:
    args = [str(i) * size for i, size in enumerate(sizes)]
    spans = subtract_ranges((first, first + len(args)), gone)
    pages = make_pages(args, first, spans)
    assert numbers([page[:2] for page in pages]) == numbers(spans)
    for begin, end, texts in pages:
        assert texts == args[begin - first : end - first]
        assert end - begin <= PAGE_CALLS
        assert end - begin == 1 or sum(map(len, texts[:-1])) < PAGE_BYTES
