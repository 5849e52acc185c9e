"""Queues and projects: how many jobs wait and run, and what bounds them."""

from __future__ import annotations

from holdfast.web.page import Page, PageRequest, together


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    queues, projects = await together(ask.reader.queues(), ask.reader.projects())
    values = {"queues": queues, "projects": projects}
    return Page(
        template="queues.html", title="Queues", values=values, follows=("queues", "jobs"), every=10
    )
