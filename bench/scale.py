"""How much is measured: the whole, or just enough to see that the harness works."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from bench.figures import Figures

T = TypeVar("T")
U = TypeVar("U")


class Scale(msgspec.Struct, frozen=True):
    """`quick` shrinks every size; its figures say nothing about speed."""

    quick: bool = False

    def pick(self, full: T, quick: T) -> T:
        """The size to use."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        """How often limit and system take turns."""
        return self.pick(5, 1)


class Benchmark(Protocol):
    """What every module in `bench.cases` has."""

    name: str
    budget: str

    def run(self, scale: Scale) -> Figures:
        """Measure, and leave nothing behind."""


def say(text: str) -> None:
    """Show progress. On stderr, so that --json stays clean."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def alternate(
    rounds: int,
    limit: Callable[[], T],
    system: Callable[[], U],
    words: Sequence[str] = ("limit", "system"),
    unit: str = "",
) -> tuple[list[T], list[U]]:
    """Measure limit, system, limit, system, … so that a noisy neighbour falls on both. Returns
    (limits, systems)."""
    limits: list[T] = []
    systems: list[U] = []
    for number in range(1, rounds + 1):
        limits.append(limit())
        systems.append(system())
        say(
            f"  round {number}/{rounds}: {words[0]} {_show(limits[-1])}, {words[1]} "
            f"{_show(systems[-1])} {unit}".rstrip()
        )
    return limits, systems


def _show(value: object) -> str:
    if isinstance(value, tuple):
        return " and ".join(map(_show, value))
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def wait_until(
    check: Callable[[], T | None], what: str, timeout_seconds: float, every_seconds: float = 0.02
) -> T:
    """Poll until `check` returns something that is not None or False.

    Raises:
        TimeoutError: naming `what`.
    """
    until = time.monotonic() + timeout_seconds
    while True:
        found = check()
        if found is not None and found is not False:
            return found
        if time.monotonic() >= until:
            raise TimeoutError(f"{what}: not within {timeout_seconds:g} s")
        time.sleep(every_seconds)
