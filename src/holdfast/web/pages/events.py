"""Events: what happened, newest first."""

from __future__ import annotations

from holdfast.client.methods.jobs import JobMethods
from holdfast.web.page import Page, PageRequest, read_items

SHOWN_EVENTS = 200


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    kind = ask.query.get("kind", "")
    call = JobMethods.events(  # a list, because it does not follow
        ask.reader, kinds=[kind] if kind else (), tail=SHOWN_EVENTS
    )
    found = await read_items(ask.reader, call)
    values = {"events": list(reversed(found)), "kind": kind}
    return Page(template="events.html", title="Events", values=values, follows=("events",))
