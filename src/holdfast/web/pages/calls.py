"""Calls: the sets of calls of Python functions, and how far each is."""

from __future__ import annotations

from holdfast.client.methods.calls import CallMethods
from holdfast.web.page import Page, PageRequest, read_items

SHOWN_SETS = 100


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    sets = await read_items(ask.reader, CallMethods.call_sets(ask.reader))
    values = {"sets": sets[:SHOWN_SETS]}
    return Page(template="calls.html", title="Calls", values=values, follows=("calls",), every=5)
