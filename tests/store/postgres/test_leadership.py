"""What every store must do for `store.leadership`."""

from __future__ import annotations

import asyncio

from tests.store.rig import Rig
from tests.waits import in_time


async def test_hints_reach_their_listener_once(rig: Rig) -> None:
    hints = rig.store.leadership.hints()
    waiting = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0)
    for _ in range(5):
        rig.store.leadership.hint("admit")
    rig.store.leadership.hint("drain")
    assert await in_time(waiting, 5) == "admit"
    assert await in_time(anext(hints), 5) == "drain"


async def test_one_leads(rig: Rig) -> None:
    assert await rig.store.leadership.try_lead() is True
    assert await rig.store.leadership.try_lead() is True
    await rig.store.leadership.stop_leading()
    assert await rig.store.leadership.try_lead() is True
