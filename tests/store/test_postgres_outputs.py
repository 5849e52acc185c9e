"""The rows of outputs: their states, whose they are, and what keeps their bytes (OUT-2)."""

from __future__ import annotations

import hashlib

import pytest

from holdfast.core.bundles.packs import PackPart
from holdfast.core.data.outputs import LeftOut, OutputsRecord
from holdfast.core.ids import TaskKey
from holdfast.core.states import OutputsEvent, OutputsState
from holdfast.errors import Stale
from holdfast.store.postgres.bundles.outputs import NewOutputs, OutputsTask
from tests.store.rig import OK, Rig

LOST_SECONDS = 900.0


@pytest.fixture
def rig(rigs: tuple[Rig, Rig]) -> Rig:
    return rigs[0]


async def bundle(rig: Rig, name: str) -> str:
    """Keep a bundle of one file."""
    digest, store = hashlib.sha256(name.encode()).hexdigest(), rig.store.bundles
    part = PackPart(hashlib.sha256(name.encode()).digest(), 8, 1)
    await store.add_pack("default", f"pack-{name}", 9, [part], now=rig.now)
    await store.add_bundle(
        "default", digest, f"plan-{name}", files=1, size=1, packs=[f"pack-{name}"], now=rig.now
    )
    return digest


async def find(rig: Rig, key: TaskKey, host: str = "h1") -> OutputsTask:
    return await rig.store.outputs.find_outputs_task(host, rig.incarnations[host], key, 1)


async def put(rig: Rig, key: TaskKey, event: OutputsEvent, digest: str = "") -> OutputsState:
    task = await find(rig, key)
    new = NewOutputs(event=event, digest=digest, files=1, left_out=[LeftOut("out/x", "a link")])
    written = await rig.store.outputs.put_outputs("h1", task, key, new, now=rig.now)
    return written.state


async def look(rig: Rig, job_id: str) -> OutputsRecord:
    found = await rig.store.outputs.list_outputs(job_id, lost_seconds=LOST_SECONDS, now=rig.now)
    return found[-1]


async def begin(rig: Rig) -> tuple[str, TaskKey]:
    await rig.host()
    job_id = await rig.submit(outputs=("out",))
    assert await rig.admit() == [job_id]
    answer = await rig.sync()
    key = answer.offers[0].task.key
    await rig.sync(live=[key], started=[key])
    return job_id, key


async def test_outputs_have_a_state_beside_their_jobs(rig: Rig) -> None:
    """OUT-1, OUT-2."""
    job_id, key = await begin(rig)
    assert (await look(rig, job_id)).state == "collecting"  # nothing came yet
    assert await put(rig, key, OutputsEvent.SEND, await bundle(rig, "one")) == "collecting"
    await rig.sync(ended=[(key, OK)])
    assert (await rig.job(job_id)).state == "succeeded"
    assert (await look(rig, job_id)).state == "collecting"
    second = await bundle(rig, "two")
    assert await put(rig, key, OutputsEvent.CUT, second) == "partial"
    found = await look(rig, job_id)
    assert (found.digest, found.left_out) == (second, [LeftOut("out/x", "a link")])
    assert await put(rig, key, OutputsEvent.SEND, "") == "partial", "a late round changed it"
    assert (await look(rig, job_id)).digest == second


async def test_a_round_lets_go_of_the_bundle_of_the_one_before(rig: Rig) -> None:
    job_id, key = await begin(rig)
    first, second = await bundle(rig, "one"), await bundle(rig, "two")
    await put(rig, key, OutputsEvent.SEND, first)
    await put(rig, key, OutputsEvent.SEND, second)
    assert await rig.store.bundles.find_bundle("default", first) is None
    rig.tick(30 * 86_400)
    dropped = await rig.store.bundles.drop_unused_bundles(3600, now=rig.now)
    assert dropped == (), "the outputs of a job on record were dropped"
    assert await rig.store.outputs.expire_outputs(86_400, now=rig.now) == 0  # still collecting
    await put(rig, key, OutputsEvent.FINISH, second)
    rig.tick(2 * 86_400)
    assert await rig.store.outputs.expire_outputs(86_400, now=rig.now) == 1
    found = await look(rig, job_id)
    assert (found.state, found.digest, found.expired_at) == ("complete", "", rig.now)
    assert await rig.store.bundles.drop_unused_bundles(3600, now=rig.now) == ("plan-two",)


@pytest.mark.parametrize("sent", [True, False])
async def test_a_lost_host_leaves_what_it_had_sent(rig: Rig, sent: bool) -> None:
    """OUT-2, OUT-5."""
    job_id, key = await begin(rig)
    digest = await bundle(rig, "one") if sent else ""
    await put(rig, key, OutputsEvent.SEND, digest)
    rig.tick(LOST_SECONDS * 2)
    assert await rig.store.outputs.settle_outputs(LOST_SECONDS, now=rig.now) == []  # it may run yet
    await rig.store.hosts.move_host("h1", "terminate", "it burnt", now=rig.now)
    await rig.complete()
    assert await rig.store.outputs.settle_outputs(LOST_SECONDS, now=rig.now) == [job_id]
    found = await look(rig, job_id)
    assert (found.state, found.digest) == ("partial" if sent else "lost", digest)
    assert "lost" in found.reason


async def test_a_host_sends_the_outputs_of_its_own_tasks_alone(rig: Rig) -> None:
    """OUT-3."""
    job_id, key = await begin(rig)
    await rig.host("h2")
    with pytest.raises(Stale, match="not this host's"):
        await find(rig, key, "h2")
    with pytest.raises(Stale):
        await find(rig, TaskKey(job_id, 1, key.epoch))
    assert (await find(rig, key)).project == "default"
    await rig.host()  # a new life of the host may send what the old one owed
    assert (await find(rig, key)).wanted
