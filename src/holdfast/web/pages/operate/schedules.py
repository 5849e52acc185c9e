"""Schedules: jobs that are submitted at set times, and what became of each time."""

from __future__ import annotations

from holdfast.web.page import Page, PageRequest, together

SHOWN_RUNS = 100


async def show_all(ask: PageRequest) -> Page:
    """Make the page of all schedules."""
    values = {"schedules": await ask.reader.schedules()}
    return Page(
        template="schedules.html",
        title="Schedules",
        values=values,
        follows=("schedules", "jobs"),
        every=30,
    )


async def show_one(ask: PageRequest) -> Page:
    """Make the page of one schedule: its times to come, and its runs. Raises NotFound."""
    reader, name = ask.reader, ask.params["schedule"]
    schedule, times, runs = await together(
        reader.schedule(name),
        reader.schedule_times(name),
        reader.schedule_runs(name, limit=SHOWN_RUNS),
    )
    values = {"each": schedule, "times": times, "runs": runs}
    return Page(
        template="schedule.html", title=name, values=values, follows=("schedules", "jobs"), every=30
    )
