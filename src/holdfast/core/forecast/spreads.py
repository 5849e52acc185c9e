"""How long something may take, as a spread of equally likely times. Pure.

A job tells how long it runs by its progress, by its past, by its time limit, or not at all. Each of these
becomes a `Spread`, from which a replay draws one time for each of its scenarios.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

import msgspec

LEAST_SAMPLES = 3
"""Fewest past durations that say more than a time limit does."""
LEAST_LEFT_SECONDS = 1.0
UNKNOWN_SECONDS = 600.0
"""The duration that is assumed of a job of which nothing is known."""
_STRATA = tuple((i + 0.5) / 12 for i in range(12))
_BY_PROGRESS = (0.85, 0.93, 0.97, 1.0, 1.03, 1.08, 1.2)
_BY_WORD = (0.6, 0.75, 0.85, 0.95, 1.0, 1.05, 1.15, 1.4)


class Spread(msgspec.Struct, frozen=True):
    """Equally likely times in seconds, ascending; at least one."""

    seconds: tuple[float, ...]

    def draw(self, part: float) -> float:
        """Return the time below which `part` of the times lie, 0 ≤ part < 1, between two of them
        in proportion."""
        at = part * len(self.seconds) - 0.5
        low = min(max(int(at), 0), len(self.seconds) - 1)
        high = min(low + 1, len(self.seconds) - 1)
        share = min(max(at - low, 0.0), 1.0)
        return self.seconds[low] * (1.0 - share) + self.seconds[high] * share


def spread_of(samples: Iterable[float]) -> Spread | None:
    """Return the spread of past times; None where there are too few to say anything."""
    times = tuple(sorted(max(0.0, each) for each in samples))
    return Spread(times) if len(times) >= LEAST_SAMPLES else None


def foretell_span(
    past: Spread | None, limit_seconds: float | None, expected_seconds: float | None
) -> Spread:
    """Return how long an attempt that starts now may run.

    past: how long jobs like it took. limit_seconds, expected_seconds: as its spec and the settings
    say.
    """
    return foretell_left(0.0, past, limit_seconds, expected_seconds, None)


def foretell_left(
    ran_seconds: float,
    past: Spread | None,
    limit_seconds: float | None,
    expected_seconds: float | None,
    pace_seconds: float | None,
) -> Spread:
    """Return how long an attempt that has run for `ran_seconds` may still run.

    pace_seconds: the time that is left by its own progress (`core.progress.pace`), which goes before
    everything else. Its likes go next, of which only those tell anything that ran for longer, and then
    the word of its spec. An attempt that outran all of them runs on for about as long as it has outrun
    them. An attempt of which nothing is known runs on for about as long as it has run.
    """
    if pace_seconds is not None:
        times: Sequence[float] = [pace_seconds * each for each in _BY_PROGRESS]
    elif past is not None:
        times = _outlive(ran_seconds, past.seconds)
    elif expected_seconds is not None:
        times = _outlive(ran_seconds, [expected_seconds * each for each in _BY_WORD])
    elif limit_seconds is not None:
        times = [limit_seconds * part - ran_seconds for part in _STRATA]
        times = [each for each in times if each > 0] or [limit_seconds - ran_seconds]
    else:
        times = [max(ran_seconds, UNKNOWN_SECONDS) * u / (1.0 - u) for u in _STRATA]
    most = float("inf") if limit_seconds is None else limit_seconds - ran_seconds
    return Spread(tuple(max(LEAST_LEFT_SECONDS, min(each, most)) for each in times))


def _outlive(ran_seconds: float, ends: Sequence[float]) -> list[float]:
    """Return the seconds from `ran_seconds` to each of `ends` (ascending), without the ends that
    are no later."""
    later = bisect_right(ends, ran_seconds)
    if later < len(ends):
        return [end - ran_seconds for end in ends[later:]]
    beyond = max(ran_seconds - ends[-1], 0.1 * ran_seconds, LEAST_LEFT_SECONDS)
    return [beyond * u / (1.0 - u) for u in _STRATA]
