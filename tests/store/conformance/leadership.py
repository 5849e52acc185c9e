"""What every store must do for `store.leadership`."""

from __future__ import annotations

import asyncio

from tests.store.rig import Rig


async def test_hints_reach_their_listener_once(rig: Rig) -> None:
    hints = rig.store.leadership.hints()
    waiting = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0)
    for _ in range(5):
        rig.store.leadership.hint("admit")
    rig.store.leadership.hint("drain")
    assert await asyncio.wait_for(waiting, 5) == "admit"
    assert await asyncio.wait_for(anext(hints), 5) == "drain"


async def test_one_leads(rig: Rig) -> None:
    assert await rig.store.leadership.try_lead() is True
    assert await rig.store.leadership.try_lead() is True
    await rig.store.leadership.stop_leading()
    assert await rig.store.leadership.try_lead() is True
