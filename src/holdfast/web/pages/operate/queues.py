"""Queues and projects: how many jobs wait and run, and what bounds them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import partial

import msgspec

from holdfast.core.report.depths import QueueDepth
from holdfast.web.acts import write_bulk, write_takes
from holdfast.web.page import Page, PageRequest, together
from holdfast.web.pages.operate.settings import list_setting_fields, make_way_back

OF_A_QUEUE = ("max_running", "time_limit_seconds", "preempt_min_run_seconds", "on_trip")
OF_A_PROJECT = (
    "quota_jobs",
    "quota_gpus",
    "share_gpus",
    "budget_usd_per_month",
    "at_budget",
    "max_retries",
    "shared",
    "notify",
)
"""The settings that a page offers; those that are set already are offered, too."""


STEP_SECONDS = 1800
STEPS = 48


class QueueDay(msgspec.Struct, frozen=True, kw_only=True):
    """The last day of a queue, half hour by half hour: the most jobs that were queued at once, and
    the age of the oldest in seconds."""

    queued: Sequence[float]
    waited: Sequence[float]


def trace_day(name: str, depths: Sequence[QueueDepth], now: datetime) -> QueueDay | None:
    """Return the last day of a queue; None where no job of it was queued."""
    last = now.timestamp() // STEP_SECONDS
    queued, waited = [0.0] * STEPS, [0.0] * STEPS
    for each in depths:
        at = STEPS - 1 - int(last - each.at.timestamp() // STEP_SECONDS)
        if each.queue == name and 0 <= at < STEPS:
            queued[at], waited[at] = each.queued, each.oldest_seconds
    return QueueDay(queued=queued, waited=waited) if any(queued) else None


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    queues, projects, depths = await together(
        ask.reader.queues(), ask.reader.projects(), ask.reader.queue_depths(step=STEP_SECONDS)
    )
    values = {
        "queues": queues,
        "days": {queue.name: trace_day(queue.name, depths, ask.now) for queue in queues},
        "projects": projects,
        "queue_fields": partial(list_setting_fields, OF_A_QUEUE),
        "project_fields": partial(list_setting_fields, OF_A_PROJECT),
        "queue_back": partial(make_way_back, OF_A_QUEUE),
        "project_back": partial(make_way_back, OF_A_PROJECT),
        "takes": write_takes,
        "bulk": {
            "pause": write_bulk("queue.pause", "queue", "name"),
            "resume": write_bulk("queue.resume", "queue", "name"),
        },
    }
    return Page(
        template="queues.html",
        title="Queues",
        values=values,
        follows=("queues", "projects", "jobs"),
        every=10,
    )
