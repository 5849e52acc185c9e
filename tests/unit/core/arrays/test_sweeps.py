"""A grid of parameters becomes points, each once, and no others."""

from __future__ import annotations

import itertools
import math
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.arrays.sweeps import expand_sweep
from holdfast.errors import ValidationError

VALUES = st.one_of(
    st.integers(-9, 9), st.booleans(), st.floats(-1, 1, allow_nan=False), st.sampled_from("abc")
)
NAMES = st.sampled_from(["lr", "seed", "batch", "depth"])
GRIDS = st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=4), max_size=3)


def _exact(point: dict[str, Any]) -> list[tuple[str, str, str]]:
    return sorted((name, type(value).__name__, repr(value)) for name, value in point.items())


@given(GRIDS, st.lists(st.dictionaries(NAMES, VALUES, min_size=1), max_size=3))
def test_every_combination_is_a_member_once(
    grid: dict[str, list[Any]], also: list[dict[str, Any]]
) -> None:
    wanted = [
        dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())
    ] * bool(grid) + also
    if not wanted:
        with pytest.raises(ValidationError, match="no points"):
            expand_sweep({"grid": grid, "also": also})
        return
    members = expand_sweep({"grid": grid, "also": also})
    assert [m.index for m in members] == list(range(len(members)))
    found = [_exact(m.params) for m in members]
    assert sorted(found) == sorted(map(list, {tuple(_exact(point)) for point in wanted}))


@given(GRIDS.filter(bool), st.data())
def test_what_is_excluded_is_not_there_and_all_else_is(
    grid: dict[str, list[Any]], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(grid)))
    value = data.draw(st.sampled_from(grid[name]))

    def same(other: Any) -> bool:
        return bool(other == value) and isinstance(other, bool) == isinstance(value, bool)

    everything = [m.params for m in expand_sweep({"grid": grid})]
    kept = [point for point in everything if not same(point[name])]
    table = {"grid": grid, "exclude": [{name: value}]}
    if not kept:
        with pytest.raises(ValidationError, match="no points"):
            expand_sweep(table)
    else:
        assert [_exact(m.params) for m in expand_sweep(table)] == [_exact(p) for p in kept]


def test_the_last_key_is_the_fastest_as_the_file_is_written() -> None:
    table = tomllib.loads(
        """
[grid]
lr = [1e-3, 1e-4]
seed = [0, 1]
[[also]]
lr = 5e-5
seed = 7
[[exclude]]
lr = 1e-4
seed = 0
"""
    )
    assert [m.params for m in expand_sweep(table)] == [
        {"lr": 1e-3, "seed": 0},
        {"lr": 1e-3, "seed": 1},
        {"lr": 1e-4, "seed": 1},
        {"lr": 5e-5, "seed": 7},
    ]


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({}, "no points"),
        ({"gird": {}}, "'gird'"),
        ({"grid": {"lr": []}}, "is empty"),
        ({"grid": {"lr": [[1]]}}, "a text, a number"),
        ({"grid": {"l r": [1]}}, "no name of a parameter"),
        ({"grid": {"lr": [1], "LR": [2]}}, "the same variable"),
        ({"grid": [1]}, "table of lists"),
        ({"also": [3]}, "table of parameters"),
        ({"grid": {"lr": [1]}, "exclude": [{"seed": 1}]}, "no point has"),
        ({"grid": {f"p{n}": list(range(10)) for n in range(6)}}, "at most 100000"),
    ],
)
def test_what_cannot_be_read_is_told(table: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        expand_sweep(table)


def test_a_grid_far_too_large_is_refused_before_it_is_made() -> None:
    grid = {f"p{n}": list(range(1000)) for n in range(10)}
    assert math.prod(map(len, grid.values())) == 10**30
    with pytest.raises(ValidationError, match="at most 100000"):
        expand_sweep({"grid": grid})
