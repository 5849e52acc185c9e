"""Pools: hosts that come and go with the queue, and their money."""

from __future__ import annotations

from holdfast.web.page import Page, PageRequest


async def show(ask: PageRequest) -> Page:
    """Make the page."""
    values = {"pools": await ask.reader.pools()}
    return Page(
        template="pools.html", title="Pools", values=values, follows=("pools", "hosts"), every=10
    )
