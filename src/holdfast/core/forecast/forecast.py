"""foretell(outlook, …) → Forecast: when a queued job is expected to start. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.forecast.outlook import Forecast, Outlook, StartPace
from holdfast.core.forecast.replay import Effort, replay
from holdfast.core.forecast.world import SCENARIOS, World, gather_lives
from holdfast.core.placement.plan import plan_admission
from holdfast.core.placement.types import Candidate

WORK = 100_000
"""The time that one forecast may take, in the microseconds of `Effort`."""
ALONE_WORK = 20_000
FEWEST = 5
"""Fewest scenarios from which an interval is made."""


class Widening(msgspec.Struct, frozen=True):
    """The measures by which a forecast makes its interval wider than the replays' starts, because a
    replay does not know jobs that are submitted later, jobs that run again, and jobs that run longer or
    shorter than similar ones. `bench forecast` measured the values.

    low, high: the interval spans the replays' starts from the first fraction of them to the second.
    earlier, later: factors of its two ends. margin_seconds: each end is moved outwards by so much. few:
    an interval of n replays is wider by few/n, because the first and the last of a few starts enclose
    fewer than four of five real ones.
    """

    low: float
    high: float
    earlier: float
    later: float
    margin_seconds: float
    few: float


IN_TURN = Widening(0.1, 0.9, 0.95, 1.08, 15.0, 1.0)
"""For a line whose jobs start in turn: none that comes later goes before them."""
OVERTAKEN = Widening(0.04, 0.96, 0.7, 1.6, 60.0, 3.0)
"""For a line that more important jobs, or projects with shares, overtake."""
LEAST_STARTS = 5
"""Fewest starts that tell a pace."""
PACE_LOW, PACE_HIGH = 0.7, 1.5


class Foretold(msgspec.Struct, frozen=True):
    """The forecasts of a line, by job. A job is missing where too few replays reached its start. whole: every
    replay went on until nothing more would start, so a job that is missing never starts, as far as can be
    told."""

    known: Mapping[str, Forecast] = {}
    whole: bool = True


def foretell_line(outlook: Outlook, work: int = WORK, stop: str | None = None) -> Foretold:
    """Return the forecast of each job of the line. stop: the only job that is of interest."""
    starts: dict[str, list[float]] = {}
    done, left, whole = 0, work, True
    for scenario in range(SCENARIOS):
        effort = Effort(min(left, work // FEWEST))
        had = effort.left
        for job_id, at in replay(outlook, scenario, effort, stop).items():
            starts.setdefault(job_id, []).append(at)
        done += 1
        whole = whole and effort.left > 0
        left -= had - max(0, effort.left)
        if left < work // FEWEST and done >= FEWEST:
            break
    overtaken = outlook.arrivals or outlook.shares or outlook.lowest_preemptible is not None
    by = OVERTAKEN if overtaken else IN_TURN
    found = {job_id: _sum_up(times, done, by) for job_id, times in starts.items()}
    return Foretold({k: v for k, v in found.items() if v is not None}, whole)


def _sum_up(times: Sequence[float], scenarios: int, by: Widening) -> Forecast | None:
    """Return the forecast of a job that started at these times; the other scenarios saw no start."""
    ordered = sorted(times) + [math.inf] * (scenarios - len(times))
    expected = _pick(ordered, 0.5)
    if not math.isfinite(expected):
        return None
    few = 1.0 + by.few / scenarios
    earliest = expected - few * (expected - _pick(ordered, by.low))
    latest = expected + few * (_pick(ordered, by.high) - expected)
    if ordered[-1] > 0.0:  # else every replay starts it at once
        earliest = by.earlier * earliest - by.margin_seconds
        latest = by.later * latest + by.margin_seconds
    return Forecast(
        expected_seconds=expected,
        earliest_seconds=max(0.0, earliest),
        latest_seconds=latest if math.isfinite(latest) else None,
        by="plan",
    )


def _pick(ordered: Sequence[float], part: float) -> float:
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def foretell_by_pace(ahead: int, pace: StartPace) -> Forecast | None:
    """Return the forecast of a job that starts once `ahead` others have, at the pace of the last starts;
    None where too few were seen."""
    if pace.starts < LEAST_STARTS or pace.rate <= 0:
        return None
    count = ahead + 1
    expected = count / pace.rate
    noise = 1.3 * (1 / math.sqrt(count) + 1 / math.sqrt(pace.starts))
    return Forecast(
        expected_seconds=expected,
        earliest_seconds=expected * max(0.0, PACE_LOW - noise),
        latest_seconds=expected * (PACE_HIGH + noise),
        by="pace",
    )


def may_ever_fit(outlook: Outlook, job: Candidate) -> bool:
    """Return whether the hosts would hold the job if nothing else ran there, with those that pools may
    bring; a pool whose spawns all fail brings none."""
    world = World(outlook)
    left = {task.job_id: 0.0 for task in outlook.running}
    world.lives = {str(n): live for n, live in enumerate(gather_lives(outlook.running, left))}
    for key in list(world.lives):
        world.end(key)
    for pool in outlook.pools:
        count = min(job.tasks, pool.room + len(pool.starting)) if pool.failing < 1.0 else 0
        for number in range(count):
            name = f"{pool.name}+{number}"
            world.add_host(msgspec.structs.replace(pool.host, host_id=name, name=name))
    return bool(plan_admission([job], world.list_room((-1, -1, -1)), {}).placements)


def find_forecast(
    outlook: Outlook, told: Foretold, job: Candidate, ahead: int, *, more: bool = False
) -> Forecast | None:
    """Return the forecast of one job: by the plan where replays reached it, else by the pace; None for a job
    for which no room will ever come, as far as can be told, and for one whose project is held.

    ahead: number of jobs ahead of it; more: these are only the least.
    """
    if (found := told.known.get(job.job_id)) is not None:
        return found
    quota = outlook.quotas.get(job.project)
    if quota is not None and quota.held:
        return None
    if not may_ever_fit(outlook, job):
        return None
    if told.whole:  # it is not in the line, or never starts
        alone = foretell_line(msgspec.structs.replace(outlook, line=(job,)), ALONE_WORK)
        if alone.whole and job.job_id not in alone.known:
            return None
    pace = outlook.pace
    if pace.starts < LEAST_STARTS:
        times = [each.expected_seconds for each in told.known.values()]
        pace = StartPace(starts=len(times), seconds=max(times, default=0.0))
    forecast = foretell_by_pace(ahead, pace)
    if forecast is None or not more:
        return forecast
    return msgspec.structs.replace(
        forecast, earliest_seconds=forecast.expected_seconds, latest_seconds=None
    )
