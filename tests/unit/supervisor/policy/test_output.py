"""Output of ranks as lines: progress bars, lines without an end, and pieces cut anywhere."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.supervisor.policy.output import MAX_LINE_BYTES, LineCutter


def cut(*pieces: bytes) -> list[bytes]:
    cutter = LineCutter()
    lines = [line for piece in pieces for line in cutter.feed(piece)]
    return lines + ([rest] if (rest := cutter.close()) else [])


@given(st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\n\n"]), max_size=12), st.data())
def test_lines_are_the_same_however_they_are_cut(words: list[bytes], data: st.DataObject) -> None:
    text = b"".join(words)
    places = sorted(data.draw(st.sets(st.integers(0, len(text)))))
    pieces = [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]
    whole = text.replace(b"\r\n", b"\n").split(b"\n")
    assert cut(*pieces) == whole[:-1] + ([whole[-1]] if whole[-1] else [])


def test_a_progress_bar_is_handed_on_with_each_step() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"\r10%") == []
    assert cutter.feed(b"\r20%") == [b"10%"]
    assert cutter.feed(b"\r30%\r") == [b"20%", b"30%"]
    assert cutter.feed(b"\n") == []
    assert cutter.close() == b""


def test_a_line_without_an_end_is_handed_on_in_parts_and_nothing_is_kept() -> None:
    cutter = LineCutter()
    pieces = [line for _ in range(100) for line in cutter.feed(b"x" * 10_000)]
    pieces.append(cutter.close())
    assert sum(map(len, pieces)) == 1_000_000
    assert max(map(len, pieces)) == MAX_LINE_BYTES
    assert {MAX_LINE_BYTES} == {len(piece) for piece in pieces[:-1]}
