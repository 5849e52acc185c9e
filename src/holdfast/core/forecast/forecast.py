"""foretell(outlook, …) → Forecast: when a queued job is expected to start. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from holdfast.core.forecast.outlook import Forecast, Outlook, StartPace
from holdfast.core.forecast.replay import Effort, replay
from holdfast.core.forecast.world import SCENARIOS

WORK = 150_000
"""What one forecast may cost, in the microseconds of `Effort`."""
FEWEST = 5
"""Fewest scenarios from which an interval is made."""
LOW, HIGH = 0.04, 0.96
MARGIN_EARLY, MARGIN_LATE = 0.05, 0.1
"""What an interval is widened by, in parts of the expectation, because a replay knows nothing of jobs that
are yet to come, that run again, or that run otherwise than their likes. Taken from `bench forecast`."""
LEAST_STARTS = 5
"""Fewest starts that tell a pace."""
PACE_LOW, PACE_HIGH = 0.7, 1.5


def foretell_line(
    outlook: Outlook, work: int = WORK, stop: str | None = None
) -> dict[str, Forecast]:
    """Return the forecast of each job of the line, by id; a job whose start no replay reached is missing.

    stop: the only job that is of interest.
    """
    starts: dict[str, list[float]] = {}
    done, left = 0, work
    for scenario in range(SCENARIOS):
        budget = Effort(min(left, work // FEWEST))
        had = budget.left
        for job_id, at in replay(outlook, scenario, budget, stop).items():
            starts.setdefault(job_id, []).append(at)
        done += 1
        left -= had - max(0, budget.left)
        if left < work // FEWEST and done >= FEWEST:
            break
    found = {}
    for job_id, times in starts.items():
        forecast = _sum_up(times, done)
        if forecast is not None:
            found[job_id] = forecast
    return found


def _sum_up(times: Sequence[float], scenarios: int) -> Forecast | None:
    """Return the forecast of a job that started at these times; the other scenarios saw no start."""
    ordered = sorted(times) + [math.inf] * (scenarios - len(times))
    expected = _pick(ordered, 0.5)
    if not math.isfinite(expected):
        return None
    earliest, latest = _pick(ordered, LOW), _pick(ordered, HIGH)
    return Forecast(
        expected_seconds=expected,
        earliest_seconds=max(0.0, earliest - MARGIN_EARLY * expected),
        latest_seconds=latest + MARGIN_LATE * expected if math.isfinite(latest) else None,
        by="plan",
    )


def _pick(ordered: Sequence[float], part: float) -> float:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def foretell_by_pace(ahead: int, pace: StartPace, after_seconds: float = 0.0) -> Forecast | None:
    """Return the forecast of a job that starts once `ahead` others have, at the pace of the last starts;
    None where too few were seen. after_seconds: from when on this pace holds."""
    if pace.starts < LEAST_STARTS or pace.rate <= 0:
        return None
    count = ahead + 1
    expected = after_seconds + count / pace.rate
    noise = 1.3 * (1 / math.sqrt(count) + 1 / math.sqrt(pace.starts))
    return Forecast(
        expected_seconds=expected,
        earliest_seconds=after_seconds
        + max(0.0, (expected - after_seconds) * max(0.0, PACE_LOW - noise)),
        latest_seconds=after_seconds + (expected - after_seconds) * (PACE_HIGH + noise),
        by="pace",
    )


def find_forecast(
    outlook: Outlook, known: Mapping[str, Forecast], job_id: str, ahead: int
) -> Forecast | None:
    """Return the forecast of one job: by the plan where a replay reached it, else by the pace.

    ahead: number of jobs ahead of it.
    """
    if (found := known.get(job_id)) is not None:
        return found
    pace = outlook.pace
    if pace.starts < LEAST_STARTS:
        times = sorted(
            each.expected_seconds for each in known.values() if each.expected_seconds > 0
        )
        if len(times) >= LEAST_STARTS:
            pace = StartPace(starts=len(times), seconds=times[-1])
    return foretell_by_pace(ahead, pace)
