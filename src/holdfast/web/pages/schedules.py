"""Schedules: jobs that are submitted at set times."""

from __future__ import annotations

from holdfast.web.page import Page, PageRequest


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    values = {"schedules": await ask.reader.schedules()}
    return Page(
        template="schedules.html",
        title="Schedules",
        values=values,
        follows=("schedules", "jobs"),
        every=30,
    )
