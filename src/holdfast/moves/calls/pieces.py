"""Calls as ranges: half open, [first, last), of indices in a set or of positions in a batch."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

Ranges = list[tuple[int, int]]
"""Half-open ranges [first, last), disjoint and in order."""


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Neighbouring calls of one set that wait, or run in one batch.

    page: index of the first call of the page that holds their arguments. rank: 100 - priority, by
    which feeds order calls first. ord: their place among calls of one rank. attempts: number of
    attempts that each has had. since: the time they became ready, in Unix seconds.
    """

    set_n: int
    first: int
    last: int
    page: int
    rank: int
    ord: int
    attempts: int
    since: float

    @property
    def size(self) -> int:
        """Return how many calls the piece has."""
        return self.last - self.first

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Return the piece's place in its feed, to sort by."""
        return (self.rank, self.ord, self.set_n, self.last)

    def cut(self, first: int, last: int) -> "Piece":
        """Return the part of the piece with these indices."""
        return msgspec.structs.replace(self, first=first, last=last)


def count_calls(pieces: Iterable[Piece]) -> int:
    """Return how many calls the pieces have together."""
    return sum(piece.last - piece.first for piece in pieces)


def cut_heads(heads: Sequence[Piece], want: int) -> tuple[list[Piece], list[Piece]]:
    """Return the first `want` calls of at most `BATCH_PIECES` pieces, and the remainder of a piece
    that was cut. Pieces behind them are in neither list."""
    taken: list[Piece] = []
    for piece in heads[:BATCH_PIECES]:
        if want <= 0:
            break
        if piece.size > want:
            middle = piece.first + want
            taken.append(piece.cut(piece.first, middle))
            return taken, [piece.cut(middle, piece.last)]
        taken.append(piece)
        want -= piece.size
    return taken, []


def add_ranges(ranges: Sequence[tuple[int, int]], more: Iterable[tuple[int, int]]) -> Ranges:
    """Return the union of two lists of ranges, neighbours joined."""
    found: Ranges = []
    for first, last in sorted([*ranges, *more]):
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        elif first < last:
            found.append((first, last))
    return found


def subtract_ranges(span: tuple[int, int], gone: Iterable[tuple[int, int]]) -> Ranges:
    """Return the parts of `span` that no range of `gone` covers."""
    left: Ranges = []
    at, end = span
    for first, last in add_ranges((), gone):
        if first >= end:
            break
        if at < first:
            left.append((at, first))
        at = max(at, last)
    if at < end:
        left.append((at, end))
    return left


def list_ranges(indices: Iterable[int]) -> Ranges:
    """Return sorted numbers as a list of ranges."""
    return add_ranges((), ((index, index + 1) for index in indices))


def place_pieces(pieces: Sequence[Piece]) -> Iterator[tuple[int, Piece]]:
    """Yield each piece with the position of its first call."""
    at = 0
    for piece in pieces:
        yield at, piece
        at += piece.last - piece.first


def cut_positions(pieces: Sequence[Piece], span: tuple[int, int]) -> list[Piece]:
    """Return the parts of `pieces` at the positions of `span`."""
    found = []
    for at, piece in place_pieces(pieces):
        first, last = max(span[0], at), min(span[1], at + piece.size)
        if first < last:
            found.append(piece.cut(piece.first + first - at, piece.first + last - at))
    return found


def find_position(pieces: Sequence[Piece], position: int) -> tuple[Piece, int] | None:
    """Return the piece and the index of the call at a position."""
    for at, piece in place_pieces(pieces):
        if at <= position < at + piece.size:
            return piece, piece.first + position - at
    return None


def make_pages(args: Sequence[str], first: int, spans: Ranges) -> list[tuple[int, int, list[str]]]:
    """Return (first, last, arguments) of the pages for `args`, the arguments of the calls from
    `first` on, limited to the indices in `spans`. A page is bounded in calls and in bytes."""
    pages: list[tuple[int, int, list[str]]] = []
    for begin, end in spans:
        at = begin
        while at < end:
            size, stop = 0, at
            while stop < end and stop - at < PAGE_CALLS and (stop == at or size < PAGE_BYTES):
                size += len(args[stop - first])
                stop += 1
            pages.append((at, stop, list(args[at - first : stop - first])))
            at = stop
    return pages


PAGE_CALLS = 500
PAGE_BYTES = 64 * 1024
BATCH_PIECES = 32
"""Most pieces of a batch. A piece lies in one page, which has at most `PAGE_BYTES` and one last
call's arguments, so a batch has at most 10 MiB and fits into a frame."""
