"""Queues show how full they were: noted once a minute, told as the most of each half hour."""

from __future__ import annotations

import re
from datetime import timedelta

from holdfast.client import AsyncClient
from holdfast.controller.loops.ledger.depths import QueueDepthsLoop
from tests.unit.controller.conftest import SECRETS, Served
from tests.unit.controller.web.conftest import Browser


async def test_a_minute_is_noted_once_and_a_stretch_tells_the_most_of_its_minutes(
    served: Served,
) -> None:
    settings, now = served.store.settings, await served.store.now()
    start = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=1)
    await settings.note_queue_depths(now=start)
    assert await settings.read_queue_depths(now - timedelta(hours=1), 1800) == []  # none was queued
    await served.submit()
    for minute in (1, 1.5, 2):
        await settings.note_queue_depths(now=start + timedelta(minutes=minute))
    await served.submit()
    await settings.note_queue_depths(now=start + timedelta(minutes=3))
    await settings.note_queue_depths(now=start + timedelta(minutes=40))
    first, second = await settings.read_queue_depths(now, 1800)
    assert (first.queue, first.at, first.queued) == ("cpu", start, 2)
    assert second.at == start + timedelta(minutes=30)
    assert second.oldest_seconds > first.oldest_seconds > 60
    each = await settings.read_queue_depths(now, 60)
    assert [found.queued for found in each] == [1, 1, 2, 2]
    await settings.note_queue_depths(now=start + timedelta(days=9))
    assert len(await settings.read_queue_depths(now, 60)) == 1  # of the last eight days


async def test_a_queues_page_shows_its_last_day(served: Served, browser: Browser) -> None:
    assert 'class="line"' not in (await browser.send("GET", "/queues")).text
    for _ in range(3):
        await served.submit()
    assert await QueueDepthsLoop(served.controller).run_once() == {}
    page = (await browser.send("GET", "/queues")).text
    assert "queued jobs of the last 24 h, at most 3" in page
    assert len(re.findall('class="line"', page)) == 2
    async with AsyncClient(served.url, SECRETS["read"]) as client:
        (found,) = await client.queue_depths()
    assert (found.queue, found.queued) == ("cpu", 3)
