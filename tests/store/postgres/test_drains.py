"""What only the store on PostgreSQL does: drains."""

from __future__ import annotations

import pytest

from holdfast.core.causes import Cause
from holdfast.moves.checkpoints import NewCheckpoint
from tests.store.rig import STOPPED, Rig, fails


async def test_a_retry_keeps_its_place_and_what_costs_nothing_goes_to_the_front(rig: Rig) -> None:
    await rig.host(slots=1)
    first, second, third = [await rig.submit() for _ in range(3)]
    await rig.fail(first, max_retries=1)
    await rig.release()
    assert await rig.places(first, second, third) == [0, 1, 2]
    await rig.store.jobs.cancel_job(first, "", now=rig.now)
    await rig.fail(second, max_retries=1, retry_delay=60.0)
    await rig.admit()
    key = await rig.key(third)
    await rig.sync()
    await rig.sync(live=[key], started=[key])
    rig.tick(60)
    await rig.release()
    late = await rig.submit()
    await rig.store.jobs.drain_job(third, Cause.PREEMPTED, "room is needed", now=rig.now)
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    assert await rig.places(third, second, late) == [0, 1, 2]
    chain = await rig.store.jobs.list_attempts(third)
    assert (chain[-1].next_at, chain[-1].charged_to) == (rig.now, "nothing")


@pytest.mark.parametrize("saves", [False, True])
async def test_an_offer_tells_whether_its_job_has_checkpoints(rig: Rig, saves: bool) -> None:
    await rig.host(slots=2)
    job_id, keys = await rig.running_gang(2)
    if saves:
        new = NewCheckpoint(blob="b", size=1, sha256=b"0" * 32)
        here = ("h1", rig.incarnations["h1"], keys[1])
        await rig.store.checkpoints.add_checkpoint(*here, new, 2, now=rig.now)
    await rig.sync(live=keys[1:], ended=[(keys[0], fails())])
    await rig.sync(ended=[(keys[1], STOPPED)])
    assert await rig.complete(at_once=True, max_retries=9, retry_delay=0.0) == [job_id]
    assert await rig.admit() == [job_id]
    assert [offer.saved for offer in (await rig.sync()).offers] == [saves, saves]
