"""foresee_start(controller, job): a queued job's place in line, its expected start, and what would let it start
now. `Forecasts` keeps what was read and planned for some seconds."""

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from holdfast.controller.runtime.context import Controller
from holdfast.controller.why.circumstances import Foreseen
from holdfast.controller.why.outlook import read_outlook
from holdfast.core.forecast.changes import find_changes
from holdfast.core.forecast.forecast import Foretold, find_forecast, foretell_line
from holdfast.core.forecast.line import MAX_AHEAD, count_ahead, list_rivals, order_line
from holdfast.core.forecast.outlook import Change, Forecast, Outlook
from holdfast.core.forecast.replay import count_ranks
from holdfast.core.placement.candidates import as_candidate
from holdfast.core.placement.types import Candidate
from holdfast.core.records import JobRecord, QueueRecord
from holdfast.core.states import JobState
from holdfast.wire.forecasts.values import JobForecast

MAX_QUEUES = 8
"""The most other queues that are tried for a job."""
MAX_RAISES = 3


async def foresee_start(controller: Controller, job: JobRecord) -> Foreseen | None:
    """Return what is foreseen of a job; None for one that is not queued, or is an executor of calls."""
    comes = _comes_in_time(job)
    if job.spec.executor or (job.state is not JobState.QUEUED and not comes):
        return None
    outlook, now = await controller.forecasts.find_outlook(lambda: read_outlook(controller))
    if comes:
        return await _foresee_later(job, outlook, now)
    queues = await controller.store.settings.list_live_queues()
    ahead, more = await _count(controller, outlook, job, queues)
    paused = any(queue.name == job.queue and queue.paused_at is not None for queue in queues)
    others = [queue.name for queue in queues if queue.paused_at is None and queue.name != job.queue]
    forecast, changes = await asyncio.to_thread(
        _plan, outlook, job, ahead, more, others[:MAX_QUEUES], paused
    )
    pools = [pool for pool in outlook.pools if count_ranks(as_candidate(job), pool)]
    return Foreseen(
        view=show_forecast(job.id, ahead, more, forecast, now),
        forecast=forecast,
        changes=tuple(changes),
        raises=tuple(each for pool in pools for each in pool.raises)[:MAX_RAISES],
        starts=outlook.pace.starts,
    )


def _comes_in_time(job: JobRecord) -> bool:
    """Return whether the job is queued at a known time: it waits for its start time or for its retry."""
    waits = job.wait_cause in ("start_time", "back_off") and job.wait_until is not None
    return job.state is JobState.WAITING and waits


async def _foresee_later(job: JobRecord, outlook: Outlook, now: datetime) -> Foreseen | None:
    """Return what is foreseen of a job that is queued later."""
    assert job.wait_until is not None
    seconds = max(0.0, (job.wait_until - now).total_seconds())
    later = msgspec.structs.replace(outlook, later=((seconds, as_candidate(job)),))
    told = await asyncio.to_thread(foretell_line, later, stop=job.id)
    forecast = told.known.get(job.id)
    if forecast is None:
        return None
    # The margin of an interval reaches back to before it is queued.
    forecast = msgspec.structs.replace(
        forecast, earliest_seconds=max(seconds, forecast.earliest_seconds)
    )
    ahead = sum(each.priority >= job.priority and not each.member for each in outlook.line)
    return Foreseen(view=show_forecast(job.id, ahead, False, forecast, now), forecast=forecast)


async def foresee_line(controller: Controller) -> list[JobForecast]:
    """Return the forecasts of the first queued jobs, in their order."""
    return await controller.forecasts.find_line(lambda: _foresee_line(controller))


async def _foresee_line(controller: Controller) -> list[JobForecast]:
    outlook, now = await controller.forecasts.find_outlook(lambda: read_outlook(controller))
    told = await asyncio.to_thread(foretell_line, outlook)
    line = [job for job in order_line(outlook) if job.member is None]
    rivals = {job.queue: list_rivals(outlook, job.queue) for job in line}
    ahead = dict.fromkeys(rivals, 0)
    found = []
    for job in line:
        forecast = told.known.get(job.job_id)
        found.append(show_forecast(job.job_id, ahead[job.queue], False, forecast, now))
        for queue, those in rivals.items():
            ahead[queue] += those is None or job.queue in those
    return found


async def _count(
    controller: Controller, outlook: Outlook, job: JobRecord, queues: Sequence[QueueRecord]
) -> tuple[int, bool]:
    """Return how many jobs are considered before the job, and whether there may be more of them."""
    ahead = count_ahead(outlook, job.id, job.queue)
    if ahead is not None:
        return ahead, False
    rivals = list_rivals(outlook, job.queue)
    names = [
        queue.name
        for queue in queues
        if queue.name == job.queue
        or (queue.paused_at is None and (rivals is None or queue.name in rivals))
    ]
    counts = await controller.store.forecasts.count_ahead(job.id, names, MAX_AHEAD)
    return sum(counts.values()), any(count >= MAX_AHEAD for count in counts.values())


def _plan(
    outlook: Outlook, job: JobRecord, ahead: int, more: bool, queues: Sequence[str], paused: bool
) -> tuple[Forecast | None, list[Change]]:
    """Return the job's forecast, and the changes with which it would start now."""
    own = next((each for each in outlook.line if each.job_id == job.id and not each.member), None)
    asked = own or as_candidate(job)
    changes = find_changes(outlook, asked, queues, paused=paused)
    if paused:
        return None, changes
    told = Foretold() if own is None else foretell_line(_cut(outlook, own), stop=job.id)
    return find_forecast(outlook, told, asked, ahead, more=more), changes


def _cut(outlook: Outlook, job: Candidate) -> Outlook:
    """Return the outlook without the jobs that come after this one: they change nothing about its start, but
    for the hosts that pools rent for them."""
    if outlook.shares:
        return outlook
    size = outlook.line.index(job) + 1
    more = outlook.behind + len(outlook.line) - size
    return msgspec.structs.replace(outlook, line=outlook.line[:size], behind=more)


def show_forecast(
    job_id: str, ahead: int, more: bool, forecast: Forecast | None, now: datetime
) -> JobForecast:
    """Return a forecast with times in place of seconds. more: only the earliest time is known."""
    if forecast is None:
        return JobForecast(job_id=job_id, ahead=ahead, more=more)
    latest = forecast.latest_seconds
    return JobForecast(
        job_id=job_id,
        ahead=ahead,
        more=more,
        by=forecast.by,
        expected_start=None if more else now + timedelta(seconds=forecast.expected_seconds),
        earliest_start=now + timedelta(seconds=forecast.earliest_seconds),
        latest_start=None if latest is None else now + timedelta(seconds=latest),
    )
