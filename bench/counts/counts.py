"""The cost of an act, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

COLUMNS: Mapping[str, str] = {
    "statements": "statements",
    "transactions": "transactions",
    "waits": "waits for the disk",
    "rows": "rows",
    "notifies": "NOTIFYs",
    "wakes": "looks of loops",
    "requests": "HTTP requests",
    "kilobytes": "kB on the wire",
    "forks": "forks of the host",
    "fsyncs": "fsyncs of the host",
    "files": "files made there",
}
"""The columns of the table, and their words there."""
ROUGH: Mapping[str, float] = {"kilobytes": 1.15, "forks": 1.0, "fsyncs": 1.0, "files": 1.0}
"""Columns that need not be the same in two runs, and how many times the table's count they may be:
numbers and times have more digits or fewer, and a host looks at itself now and then."""


LEAST_A_SECOND = 0.1
"""The difference between two means that one statement makes which runs once in tens of seconds."""


class Counts(msgspec.Struct, frozen=True):
    """The cost of an act. names: the number of runs of each statement, by its name."""

    columns: dict[str, float]
    names: dict[str, float] = {}

    def take_least(self, other: Counts) -> Counts:
        """Return these counts, and of what is rough the lesser of both."""
        least = {k: min(v, other.columns[k]) for k, v in self.columns.items() if k in ROUGH}
        return Counts({**self.columns, **least}, self.names)

    def equals(self, other: Counts) -> bool:
        """Return whether two counts are the same, but for what is rough."""
        mine, others = (
            {key: value for key, value in each.columns.items() if key not in ROUGH}
            for each in (self, other)
        )
        return mine == others and self.names == other.names


def add_up(parts: Sequence[tuple[float, Counts]]) -> Counts:
    """Return the sum of counts, each times its weight, rounded to hundredths."""
    columns: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for weight, counts in parts:
        for total, found in ((columns, counts.columns), (names, counts.names)):
            for key, value in found.items():
                total[key] += value * weight
    return Counts(
        {key: round(value, 2) for key, value in columns.items()},
        {key: round(value, 2) for key, value in names.items()},
    )


def pick_worst(found: Sequence[Counts]) -> Counts:
    """Return the highest of each count."""
    columns = {key: max(each.columns[key] for each in found) for key in found[0].columns}
    names = {key for each in found for key in each.names}
    return Counts(columns, {k: max(each.names.get(k, 0.0) for each in found) for k in names})


def tell_rises(allowed: Counts, found: Counts, slack: float = 1.0) -> Iterator[str]:
    """Say of each count where it is higher than allowed, and which statements are new, or more
    where there are more statements than allowed: one may stand for another. slack: the factor by
    which a count may exceed the count on the page."""
    for key, value in found.columns.items():
        limit = allowed.columns.get(key, 0.0)
        if value > limit * max(slack, ROUGH.get(key, 1.0)) + (slack > 1.0) * LEAST_A_SECOND:
            yield f"{COLUMNS[key]}: {value:g} in place of {limit:g}"
    more = found.columns["statements"] > slack * allowed.columns.get("statements", 0.0)
    for key, value in found.names.items():
        limit = allowed.names.get(key, 0.0)
        if value > limit and (more or not limit):
            yield f"statement {key}: {value:g} in place of {limit:g}"
