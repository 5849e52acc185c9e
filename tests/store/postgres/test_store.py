"""What the store shows of itself, and by which clock it goes."""

from __future__ import annotations

import pytest

from holdfast.errors import Stale
from holdfast.store.postgres.connection.leadership import LEAD_SECONDS
from tests.store.rig import Rig


async def test_gauges(rig: Rig) -> None:
    await rig.host()
    await rig.running()
    await rig.submit(gpus=1)
    gauges = await rig.store.read_gauges(now=rig.tick(7))
    assert gauges.jobs == {("cpu", "running"): 1, ("cpu", "queued"): 1}
    assert (gauges.hosts, gauges.dead_hosts, gauges.oldest_queued_seconds) == (
        {"active": 1},
        0,
        7.0,
    )


async def test_a_store_that_is_told_the_time_goes_by_no_other_clock(told_rig: Rig) -> None:
    """STORE-5, LEAD-3: the told time is months from the database's."""
    store = told_rig.store
    assert await store.now() == told_rig.now
    assert await store.leadership.try_lead()
    with store.leadership.fenced():
        await store.settings.put_project("early", {})
        told_rig.tick(LEAD_SECONDS + 1)
        with pytest.raises(Stale):
            await store.settings.put_project("late", {})
    assert [project.name for project in await store.settings.list_projects()] == ["early"]
