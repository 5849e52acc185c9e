"""Lines are found whole, however a stream is cut (GREP-2, GREP-3)."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.logs.scan import LINE_BYTES, SHOWN_BYTES, Finder, FoundLine, LogPiece, Scanner

AT = datetime(2026, 1, 1, tzinfo=UTC)


def finder(pattern: bytes) -> Finder:
    compiled = re.compile(pattern, re.M)

    def find(text: bytes, at: int) -> tuple[int, int] | None:
        text.decode()  # it is always UTF-8
        found = compiled.search(text, at)
        return None if found is None else found.span()

    return find


def scan(
    data: bytes, cuts: list[int], pattern: bytes, context: int = 0, limit: int = 1 << 30
) -> list[FoundLine]:
    scanner = Scanner(finder(pattern), context, limit)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    pieces = [
        LogPiece(a, data[a:b], AT + timedelta(seconds=a)) for a, b in itertools.pairwise(edges)
    ]
    turns = [[piece] for piece in pieces[:-2]] + [pieces[-2:]]
    found = [line for turn in turns for line in scanner.feed(turn)]
    return found + scanner.finish()


TEXT = st.lists(st.sampled_from([b"a", b"b", b"ab\n", b"\n", b"\xff", b"\r\n", b"xa"]), max_size=30)


@given(TEXT.map(b"".join), st.lists(st.integers(0, 100)), st.integers(0, 3))
def test_a_stream_is_searched_as_its_lines_are(data: bytes, cuts: list[int], context: int) -> None:
    lines = data.split(b"\n")
    lines = lines[:-1] if not lines[-1] else lines
    matches = [n for n, line in enumerate(lines) if b"a" in line]
    shown = {n + d for n in matches for d in range(-context, context + 1)} & set(range(len(lines)))
    found = scan(data, cuts, b"a", context)
    offsets = [sum(len(line) + 1 for line in lines[:n]) for n in range(len(lines))]
    assert [(f.offset, f.data, f.match) for f in found] == [
        (offsets[n], lines[n].removesuffix(b"\r"), n in matches) for n in sorted(shown)
    ]
    for line in found:
        assert not line.match or line.data[line.start : line.end] == b"a"
        assert line.at is not None
        assert line.at <= AT + timedelta(seconds=line.offset)


def test_bytes_that_are_no_utf8_are_matched_by_a_dot_and_told_as_they_are() -> None:
    (line,) = scan(b"x\nloss \xff\xfe nan\ny", [3, 9], b"loss .. nan")
    assert (line.offset, line.data, line.start, line.end) == (2, b"loss \xff\xfe nan", 0, 11)


def test_a_line_of_ten_megabytes_is_told_once_and_cut() -> None:
    size = 10 << 20
    line = b"a" * (size // 2) + b"needle" + b"b" * (size // 2) + b"needle"
    data = b"before\n" + line + b"\nafter needle\n"
    first, second = scan(data, list(range(0, len(data), 64 * 1024)), b"needle$|needleb")
    assert first.offset == 7
    assert len(first.data) == SHOWN_BYTES
    assert first.data[first.start : first.end] == b"needleb"
    assert first.cut > size // 2 - LINE_BYTES, "at the least what had come before the match"
    assert (second.data, second.cut) == (b"after needle", 0)
    told = scan(line + b"\nnext\n", [1 << 20], b"next", context=1)
    assert [(t.offset, t.match) for t in told][-1] == (len(line) + 1, True)


def test_a_hole_ends_a_line_and_is_no_place_for_a_match() -> None:
    scanner = Scanner(finder(b"ab"), 1)
    found = scanner.feed([LogPiece(0, b"xa", None), LogPiece(10, b"b\nab\n", None)])
    found += scanner.finish()
    assert [(f.offset, f.data, f.match) for f in found] == [(10, b"b", False), (12, b"ab", True)]


def test_the_limit_counts_matches_and_ends_the_search() -> None:
    found = scan(b"a\nb\na\nb\na\n", [2], b"a", 1, limit=2)
    assert [f.data for f in found if f.match] == [b"a", b"a"]
    scanner = Scanner(finder(b"a"), 0, 1)
    scanner.feed([LogPiece(0, b"a\nb", None)])
    assert not scanner.wants_more
    assert Scanner(finder(b"a")).wants_more is False
