"""What every store shows of itself."""

from __future__ import annotations

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
