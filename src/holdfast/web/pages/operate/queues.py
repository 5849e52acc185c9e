"""Queues and projects: how many jobs wait and run, and what bounds them."""

from __future__ import annotations

from functools import partial

from holdfast.web.acts import write_bulk
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


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    queues, projects = await together(ask.reader.queues(), ask.reader.projects())
    values = {
        "queues": queues,
        "projects": projects,
        "queue_fields": partial(list_setting_fields, OF_A_QUEUE),
        "project_fields": partial(list_setting_fields, OF_A_PROJECT),
        "queue_back": partial(make_way_back, OF_A_QUEUE),
        "project_back": partial(make_way_back, OF_A_PROJECT),
        "bulk": {
            "pause": write_bulk("queue.pause", "queue", "name"),
            "resume": write_bulk("queue.resume", "queue", "name"),
        },
    }
    return Page(
        template="queues.html", title="Queues", values=values, follows=("queues", "jobs"), every=10
    )
