"""The order of tests among several workers: those that wait longest begin first, and those that
wait run beside those that compute, so that the cores are neither crowded at first nor idle at
last."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice

import pytest


def order_items(items: Sequence[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the items so that each worker, which pytest-xdist gives one part of the list, begins
    with some of the longest and then takes turns between files of the two sorts.

    A worker that has no more takes from the ends of the others' parts.
    """
    longest = [item for item in items if item.get_closest_marker("longest")]
    others = [item for item in items if not item.get_closest_marker("longest")]
    waiting = [item for item in others if item.nodeid.startswith("tests/system/")]
    computing = [item for item in others if not item.nodeid.startswith("tests/system/")]
    rest = iter(mix_files(waiting, computing))
    ordered = list[pytest.Item]()
    for worker in range(workers):
        size = (len(items) - len(ordered)) // (workers - worker)
        first = longest[worker::workers]
        ordered += [*first, *islice(rest, max(0, size - len(first)))]
    return [*ordered, *rest]


def mix_files(some: Sequence[pytest.Item], others: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the items of both with each file whole, in its order within its sort, and each sort
    spread evenly over the list."""
    placed = []
    for items in (some, others):
        done = 0
        for _, group in groupby(items, key=lambda item: item.nodeid.partition("::")[0]):
            file = list(group)
            placed.append(((done + len(file) / 2) / len(items), file))
            done += len(file)
    placed.sort(key=lambda pair: pair[0])
    return [item for _, file in placed for item in file]
