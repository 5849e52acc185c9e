"""The outlook of the queues, read from the store: what forecasts are made of. Read at most once in some
seconds, however many jobs are asked about."""

import asyncio
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.leading.ends import foresee_ends
from holdfast.core.fleet.breaker import PROBE_SECONDS, find_allowance, wait_for_offer
from holdfast.core.fleet.grow import find_bound
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.snapshot import SpawnOutcome
from holdfast.core.forecast.line import MAX_AHEAD
from holdfast.core.forecast.outlook import JobArrival, Outlook, PoolOutlook, StartPace
from holdfast.core.forecast.raises import find_raises
from holdfast.core.forecast.spreads import (
    UNKNOWN_SECONDS,
    Spread,
    foretell_left,
    foretell_span,
    spread_of,
)
from holdfast.core.placement.eligible import serves
from holdfast.core.placement.types import Candidate, Capacity, RunningTask
from holdfast.store.postgres.jobs.forecasts import ObservedSpan, RentedPool

LIMIT = 500
"""The jobs at the head of each queue that forecasts plan for, as many as admission looks at."""
PACE_WINDOWS = (900.0, 3600.0, 6 * 3600.0, 86_400.0)
"""Seconds. The pace is that of the shortest of these within which enough jobs started."""
ENOUGH_STARTS = 20
ARRIVALS_SECONDS = 6 * 3600.0
"""The time within which jobs came that a replay lets come again."""
LEAST_WINDOW = 600.0
MAX_PRIORITY = 100
MAX_MEMORY = 1 << 50
"""The memory of an offer that does not say how much it has."""

FAILED_IN_ROW = 2
"""Spawns of a pool that fail in a row, after which none is counted on."""

Likes = Mapping[tuple[str, str], Spread]


async def read_outlook(controller: Controller) -> Outlook:
    """Return what admission would see now, and how long everything may take."""
    store = controller.store
    settings = await controller.settings.current()
    snapshot, past, left, rentals = await asyncio.gather(
        store.admission.read_line(LIMIT),
        store.forecasts.read_past(),
        store.forecasts.read_left(),
        store.forecasts.read_rentals(),
    )
    line, running = await foresee_ends(store, controller.spans, snapshot.candidates, settings)
    hold_back = settings.value("hold_back_seconds")
    likes = find_likes(past)
    shown = Counter(job.queue for job in line if job.member is None)
    window = min(
        ARRIVALS_SECONDS, max([p.age_seconds for p in past if p.what == "start"], default=0.0)
    )
    arrivals = await _read_arrivals(controller, line, window, likes)
    cut = {queue for queue, count in shown.items() if count >= LIMIT}
    behind = 0
    if cut and rentals:  # pools rent for all jobs that wait
        behind = await store.forecasts.count_queued(sorted(cut), MAX_AHEAD) - LIMIT * len(cut)
    return Outlook(
        line=tuple(line),
        behind=max(0, behind),
        floors=find_floors(line, cut),
        hosts=snapshot.hosts,
        running=tuple(running),
        ends=_find_ends(running, left, likes),
        spans={job.job_id: _find_span(job, likes) for job in line},
        span=_find_any(past) or Spread((UNKNOWN_SECONDS,)),
        pools=tuple(find_pool(rented, line) for rented in rentals if rented.view.paused is None),
        pace=find_pace([p.age_seconds for p in past if p.what == "start"]),
        arrivals=arrivals,
        arrivals_seconds=window,
        headroom=snapshot.headroom,
        quotas=snapshot.quotas,
        shares=snapshot.shares,
        hold_back_seconds=None if hold_back is None else float(hold_back),
        lowest_preemptible=snapshot.lowest_preemptible if settings.value("preemption") else None,
    )


async def _read_arrivals(
    controller: Controller, line: Sequence[Candidate], window: float, likes: Likes
) -> tuple[JobArrival, ...]:
    """Return the jobs of the last `window` seconds that would come before the least important of the line."""
    lowest = min((job.priority for job in line), default=MAX_PRIORITY)
    if window < LEAST_WINDOW or lowest >= MAX_PRIORITY:
        return ()
    found = await controller.store.forecasts.read_arrivals(lowest, window)
    return tuple(
        JobArrival(age_seconds=age, job=job, span=_find_span(job, likes)) for age, job in found
    )


def find_floors(line: Sequence[Candidate], cut: set[str]) -> dict[str, int]:
    """Return, for each of the queues of which only the head was read, the priority of its last job."""
    return {job.queue: job.priority for job in line if job.queue in cut and job.member is None}


def find_likes(past: Sequence[ObservedSpan]) -> Likes:
    """Return how long jobs took: by project and name or array, and by queue ("", queue)."""
    times: dict[tuple[str, str], list[float]] = {}
    for each in past:
        if each.what == "end" and each.seconds is not None:
            times.setdefault(("", each.queue), []).append(each.seconds)
            if each.kin:
                times.setdefault((each.project, each.kin), []).append(each.seconds)
    found = {key: spread_of(seconds) for key, seconds in times.items()}
    return {key: spread for key, spread in found.items() if spread is not None}


def _find_any(past: Sequence[ObservedSpan]) -> Spread | None:
    return spread_of([each.seconds for each in past if each.seconds is not None])


def _find_span(job: Candidate, likes: Likes) -> Spread:
    own = likes.get((job.project, job.kin)) if job.kin else None
    if own is None and job.expected_seconds is None:
        own = likes.get(("", job.queue))
    return foretell_span(own, job.time_limit_seconds, job.expected_seconds)


def _find_ends(
    running: Sequence[RunningTask], left: Mapping[str, float], likes: Likes
) -> dict[str, Spread]:
    found: dict[str, Spread] = {}
    for task in running:
        if task.job_id in found:
            continue
        own = likes.get((task.project, task.kin)) if task.kin else None
        if own is None and task.expected_seconds is None:
            own = likes.get(("", task.queue))
        found[task.job_id] = foretell_left(
            task.ran_seconds,
            own,
            task.time_limit_seconds,
            task.expected_seconds,
            left.get(task.job_id),
        )
    return found


def find_pace(ages: Sequence[float]) -> StartPace:
    """Return the pace of starts that are so many seconds old. Where the oldest that was read is younger
    than the window, it bounds the window."""
    oldest = max(ages, default=0.0)
    for window in PACE_WINDOWS:
        inside = sum(age <= window for age in ages)
        if inside >= ENOUGH_STARTS or window == PACE_WINDOWS[-1]:
            seconds = min(window, max(1.0, oldest)) if len(ages) > inside or inside else 0.0
            return StartPace(starts=inside, seconds=seconds)
    return StartPace()


def find_pool(rented: RentedPool, line: Sequence[Candidate]) -> PoolOutlook:
    """Return a pool as far as it may bring hosts: how many more it may rent by the bounds of its growth,
    once its pauses are over."""
    view = rented.view
    spec = view.spec
    calm = msgspec.structs.replace(view, quiet_seconds=0.0, outcomes=(), trouble={})
    most, _ = find_bound(calm, rented.at, {})
    offer = choose_offer(rented, line)
    guess = Spread(tuple(spec.spawn_timeout_seconds * part for part in (0.2, 0.4, 0.6)))
    return PoolOutlook(
        name=spec.name,
        host=_show_offer(rented, offer),
        starting=rented.starting,
        serving=view.serving,
        room=max(0, most - view.starting - view.serving),
        resumes_seconds=find_pause_seconds(rented),
        cycle_seconds=spec.poll_seconds,
        jobs_per_host=spec.jobs_per_host,
        rent_after_seconds=spec.rent_after_seconds,
        spawn=spread_of(rented.spawn_seconds) or guess,
        failing=find_failing(view.outcomes),
        raises=find_raises(view, offer, rented.at),
    )


def find_failing(outcomes: Sequence[SpawnOutcome]) -> float:
    """Return the share of spawns that fail: all of them, where the newest failed one after the other."""
    newest = sorted(outcomes, key=lambda each: each.age_seconds)[:FAILED_IN_ROW]
    if len(newest) == FAILED_IN_ROW and all(outcome.fault for outcome in newest):
        return 1.0
    return sum(bool(outcome.fault) for outcome in outcomes) / max(1, len(outcomes))


def find_pause_seconds(rented: RentedPool) -> float:
    """Return the seconds until the pool may ask for a host again: its provider wants to be left in peace, its
    breaker is open, or each of its offers was refused."""
    view = rented.view
    allowed, _ = find_allowance(view.outcomes, view.starting)
    newest = min((each.age_seconds for each in view.outcomes if each.fault), default=math.inf)
    waits = [
        wait_for_offer(view.spec.name, offer.name, view.trouble.get(offer.name))
        for offer in view.spec.offers
    ]
    probe = max(0.0, PROBE_SECONDS - newest) if allowed == 0 else 0.0
    return max(view.quiet_seconds, probe, min(waits))


def choose_offer(rented: RentedPool, line: Sequence[Candidate]) -> Offer:
    """Return the offer that the first job of the line fits into, else the first."""
    spec = rented.view.spec
    for job in line:
        if serves(spec.queues, job.queue):
            for offer in spec.offers:
                if offer.gpus >= job.gpus and offer.cpu_slots >= job.cpu_slots:
                    return offer
    return spec.offers[0]


def _show_offer(rented: RentedPool, offer: Offer) -> Capacity:
    spec = rented.view.spec
    return Capacity(
        host_id="",
        name="",
        incarnation="",
        queues=frozenset(spec.queues),
        labels=spec.labels,
        free_cpu_slots=offer.cpu_slots,
        free_memory_bytes=offer.memory_bytes or MAX_MEMORY,
        free_devices=tuple(range(offer.gpus)),
    )
