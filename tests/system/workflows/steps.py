"""Functions that the tests' workflows call, on hosts that list the app `steps`."""

from __future__ import annotations

from pathlib import Path

import holdfast


@holdfast.task
def count(up_to: int) -> list[int]:
    """The numbers below."""
    return list(range(up_to))


@holdfast.task
def square(n: int, marker: str) -> int:
    """The square; 3 fails until the marker is there. Each run leaves a line."""
    with (holdfast.context().out_dir / "runs").open("a") as runs:
        runs.write(f"{n}\n")
    if n == 3 and not Path(marker).exists():
        raise ValueError("three is out of order")
    return n * n


@holdfast.task
def add(numbers: list[int]) -> int:
    """Their sum."""
    return sum(numbers)
