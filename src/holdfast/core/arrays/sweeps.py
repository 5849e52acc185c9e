"""Sweeps: a grid of parameters, written in TOML, becomes the members of an array.

[grid]                      every combination, the last key fastest
lr = [1e-3, 1e-4]
seed = [0, 1, 2]

[[also]]                    points beside the grid
lr = 5e-5
seed = 7

[[exclude]]                 every point that has all of these values is left out
lr = 1e-3
seed = 2
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Any

from holdfast.core.arrays.arrays import MAX_MEMBERS, Member, Param
from holdfast.core.arrays.lines import name_variable
from holdfast.errors import ValidationError

_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
Point = dict[str, Param]


def expand_sweep(table: Mapping[str, Any]) -> tuple[Member, ...]:
    """Return the members of a sweep, numbered from 0 in the order of the grid, then of `also`.

    A point that is there twice is one member.

    Raises:
        ValidationError: names the part that cannot be read, and what to write instead.
    """
    unknown = sorted(table.keys() - {"grid", "also", "exclude"})
    if unknown:
        raise _refuse(f"it has {unknown[0]!r}; there are [grid], [[also]] and [[exclude]]")
    grid = _read_grid(table.get("grid", {}))
    also = [_read_point("also", point) for point in _read_list(table, "also")]
    exclude = [_read_point("exclude", point) for point in _read_list(table, "exclude")]
    size = math.prod(map(len, grid.values())) if grid else 0
    if size + len(also) > MAX_MEMBERS:
        raise _refuse(f"it has {size + len(also)} points; an array has at most {MAX_MEMBERS}")
    names = set(grid).union(*also) if also else set(grid)
    _check_names(names)
    for point in exclude:
        strange = sorted(point.keys() - names)
        if strange:
            raise _refuse(f"[[exclude]] names {strange[0]!r}, which no point has")
    combinations = itertools.product(*grid.values()) if grid else ()
    points = [dict(zip(grid, values, strict=True)) for values in combinations]
    found: dict[tuple[Any, ...], Point] = {}
    for point in (*points, *also):
        if not any(_same(point, left_out) for left_out in exclude):
            found.setdefault(_key(point), point)
    if not found:
        raise _refuse("it has no points: give [grid] a list of values for each parameter")
    return tuple(Member(index=n, params=point) for n, point in enumerate(found.values()))


def _read_grid(grid: Any) -> dict[str, list[Param]]:
    if not isinstance(grid, Mapping):
        raise _refuse("[grid] is a table of lists, as lr = [1e-3, 1e-4]")
    found: dict[str, list[Param]] = {}
    for name, values in grid.items():
        listed = values if isinstance(values, list) else [values]
        if not listed:
            raise _refuse(f"the list of {name!r} is empty")
        found[name] = [_read_value(name, value) for value in listed]
    return found


def _read_list(table: Mapping[str, Any], name: str) -> list[Any]:
    found = table.get(name, [])
    if isinstance(found, Mapping):
        return [found]
    if not isinstance(found, list):
        raise _refuse(f"[[{name}]] is a list of tables")
    if len(found) > MAX_MEMBERS:
        raise _refuse(
            f"[[{name}]] has {len(found)} tables; an array has at most {MAX_MEMBERS} jobs"
        )
    return found


def _read_point(where: str, point: Any) -> Point:
    if not isinstance(point, Mapping) or not point:
        raise _refuse(f"each [[{where}]] is a table of parameters, as lr = 5e-5")
    return {name: _read_value(name, value) for name, value in point.items()}


def _read_value(name: str, value: Any) -> Param:
    if not isinstance(value, (str, int, float, bool)):
        raise _refuse(f"{name} = {value!r:.40}: a parameter is a text, a number, true or false")
    if isinstance(value, str) and ("\x00" in value or len(value) > 4096):
        raise _refuse(f"{name}: a text is at most 4096 characters, without NUL")
    return value


def _check_names(names: set[str]) -> None:
    variables: dict[str, str] = {}
    for name in sorted(names):
        if not _NAME.fullmatch(name):
            raise _refuse(f"{name!r:.70} is no name of a parameter: letters, digits and _")
        other = variables.setdefault(name_variable(name), name)
        if other != name:
            raise _refuse(f"{other!r} and {name!r} would be the same variable")


def _key(point: Point) -> tuple[Any, ...]:
    return tuple(sorted((name, type(value).__name__, repr(value)) for name, value in point.items()))


def _same(point: Point, part: Point) -> bool:
    """Return whether the point has all values of `part`. true is not 1."""
    return all(
        name in point
        and point[name] == value
        and isinstance(point[name], bool) == isinstance(value, bool)
        for name, value in part.items()
    )


def _refuse(why: str) -> ValidationError:
    return ValidationError(f"the sweep cannot be read: {why}", field="sweep")
