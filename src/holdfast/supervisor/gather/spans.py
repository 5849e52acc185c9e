"""Sets of ranks as spans, so that a set of thousands is a few numbers and a few words.

A span is a list of two ranks, the first and the last; a set is a sorted list of spans with gaps
between them.
"""

from collections.abc import Iterable, Iterator

Spans = list[list[int]]


def make_spans(ranks: Iterable[int]) -> Spans:
    """Make a set of these ranks."""
    return join_spans([], [[rank, rank] for rank in sorted(set(ranks))])


def join_spans(one: Spans, other: Spans) -> Spans:
    """Return the union of two sets of ranks."""
    joined: Spans = []
    for first, last in sorted(one + other):
        if joined and first <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return joined


def list_ranks(spans: Spans) -> Iterator[int]:
    """List the ranks of a set."""
    for first, last in spans:
        yield from range(first, last + 1)


def count_ranks(spans: Spans) -> int:
    """Count the ranks of a set."""
    return sum(last - first + 1 for first, last in spans)


def subtract(spans: Spans, others: Spans) -> Spans:
    """Return a set without the ranks of another set."""
    away = set(list_ranks(others))
    return make_spans(rank for rank in list_ranks(spans) if rank not in away)


def name_ranks(spans: Spans) -> str:
    """Write a set as "rank 2" or "4 ranks (0-2, 5)"."""
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    count = count_ranks(spans)
    return f"rank {words}" if count == 1 else f"{count} ranks ({words})"
