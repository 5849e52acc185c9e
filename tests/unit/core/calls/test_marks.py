"""MARK-1: which output is of which call."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.calls.marks import (
    MAX_GAP,
    count_partial,
    cut_output,
    find_marks,
    list_spans,
    make_mark,
)

SETS = ("06ch2v8wq1m4kz7d9x3t", "06ch2v8wq1m4kz7d9x3v")
WORDS = st.sampled_from(
    [b"", b"a line\n", b"half", b"[holdfast] call ", b"[holdfast] call me\n", b"\n", b"[hold"]
)
CALLS = st.tuples(st.sampled_from(SETS), st.integers(0, 5000), st.integers(1, 3), WORDS)


def write(calls: list[tuple[str, int, int, bytes]]) -> bytes:
    """What an executor writes: a mark at the start of a line before each call's output."""
    text = b""
    for set_id, index, attempt, output in calls:
        gap = b"" if not text or text.endswith(b"\n") else b"\n"
        text += gap + make_mark(set_id, index, attempt).encode() + output
    return text


@given(st.lists(CALLS, max_size=20), st.lists(st.integers(1, 60), max_size=40))
def test_an_output_is_given_whole_and_alone_however_it_is_cut(
    calls: list[tuple[str, int, int, bytes]], cuts: list[int]
) -> None:
    text = write(calls)
    marks = find_marks(text)
    assert [(m.set_id, m.index, m.attempt) for m in marks] == [call[:3] for call in calls]
    for mark, call in zip(marks, calls, strict=True):
        at, found, closed = mark.end, b"", False
        for size in [*cuts, len(text) + 1]:
            stop, final = min(len(text), at + size), at + size > len(text)
            data = text[at:stop]
            fresh = text[at - 1 : at] == b"\n"
            own, closed = cut_output(data, fresh=fresh, final=final)
            found, at = found + own, at + len(own)
            if closed:
                break
        last = mark is marks[-1]
        assert closed is not last
        assert found == call[3] or (not last and found == call[3] + b"\n")


@given(st.lists(CALLS, max_size=30), st.integers(0, 1 << 40))
def test_spans_cover_every_call_within_their_bytes(
    calls: list[tuple[str, int, int, bytes]], offset: int
) -> None:
    text = write(calls)
    spans = list_spans(offset, text)
    for mark in find_marks(text):
        assert any(
            (s.set_id, s.attempt) == (mark.set_id, mark.attempt)
            and s.first <= mark.index < s.last
            and s.start <= offset + mark.start
            and offset + mark.end <= s.end
            for s in spans
        )


def test_neighbours_are_one_span_and_far_ones_are_not() -> None:
    calls = [(SETS[0], n, 1, b"x\n") for n in range(500)]
    text = write([*calls, (SETS[0], 499 + MAX_GAP, 1, b""), (SETS[0], 5000, 1, b"")])
    found = list_spans(7, text)
    assert [(s.first, s.last) for s in found] == [(0, 500 + MAX_GAP), (5000, 5001)]
    assert found[0].start == 7
    assert list_spans(0, b"no mark [holdfast] call x\n") == []


def test_what_may_begin_a_mark_waits_for_its_rest() -> None:
    whole = make_mark(SETS[0], 12, 1).encode()
    for end in range(1, len(whole)):
        assert count_partial(b"a line\n" + whole[:end]) == end
    assert count_partial(b"a line\n" + whole) == 0
    assert count_partial(b"[hol", fresh=False) == 0
    assert count_partial(b"[holdfast] call " + b"x" * 100) == 0
