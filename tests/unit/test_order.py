"""Tests are shared out so that the longest begin first and waiting runs beside computing."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from tests.order import order_items


def make_items(waiting: int, computing: int, longest: int) -> list[Any]:
    """Items in files of seven, as pytest collects them: one folder after the other."""
    names = [f"tests/system/test_{n // 7}.py::test_{n}" for n in range(waiting)]
    names += [f"tests/unit/test_{n // 7}.py::test_{n}" for n in range(computing)]
    marked = set(names[:: max(1, waiting // longest)][:longest]) if longest else set()
    return [
        SimpleNamespace(nodeid=name, get_closest_marker=lambda _, found=name in marked: found)
        for name in names
    ]


@pytest.mark.parametrize("workers", [2, 4, 5])
@pytest.mark.parametrize("sizes", [(110, 550, 9), (110, 550, 0), (3, 1, 3), (0, 20, 0), (20, 0, 1)])
def test_each_part_begins_with_the_longest_and_no_test_is_lost(
    sizes: tuple[int, int, int], workers: int
) -> None:
    items = make_items(*sizes)
    ordered = order_items(items, workers)
    assert sorted(item.nodeid for item in ordered) == sorted(item.nodeid for item in items)
    assert len(ordered) == len(items)
    left, begins = len(items), 0
    most = -(-sizes[2] // workers)
    for worker in range(workers):  # as pytest-xdist's `worksteal` parts the list
        size = left // (workers - worker)
        part = ordered[begins : begins + size]
        found = [bool(item.get_closest_marker("longest")) for item in part]
        assert found == sorted(found, reverse=True)
        assert sum(found) <= most
        left, begins = left - size, begins + size


def test_what_waits_is_spread_over_the_whole_run_and_files_stay_whole() -> None:
    ordered = order_items(make_items(110, 550, 0), 4)
    tenths = [ordered[n : n + 66] for n in range(0, 660, 66)]
    for tenth in tenths:
        assert 4 <= sum(item.nodeid.startswith("tests/system/") for item in tenth) <= 18
    files = [item.nodeid.partition("::")[0] for item in ordered]
    changes = sum(one != other for one, other in pairwise(files))
    assert changes == len(set(files)) - 1
