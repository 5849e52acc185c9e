"""SAVED-1…2: what calls left for their next attempts, and which executor may leave and have it."""

from __future__ import annotations

import pytest

from holdfast.core.ids import TaskKey
from holdfast.errors import Stale
from holdfast.moves.calls.checkpoints import CallHolder, CallKept, name_blob
from holdfast.moves.checkpoints import NewCheckpoint
from tests.store.postgres.test_calls import DOUBLE, args, done, executor, raised, say
from tests.store.rig import Rig


async def hold(rig: Rig, count: int = 2) -> tuple[TaskKey, int]:
    """Have one executor hold all calls of a set; its key and the batch."""
    key = await executor(rig)
    await rig.store.calls.create_set(
        "s1", DOUBLE, "cpu", count=count, args=args(count), now=rig.now
    )
    (batch,) = (await say(rig, key, want=count)).batches
    return key, batch.id


def holder(key: TaskKey, batch: int, position: int = 0, host: str = "h1") -> CallHolder:
    return CallHolder(host_id=host, key=key, batch=batch, position=position)


def new(index: int, number: str) -> NewCheckpoint:
    call = CallKept(set_id="s1", index=index)
    return NewCheckpoint(blob=name_blob(call, number), size=3, sha256=bytes(32))


async def test_the_newest_is_kept_and_the_next_attempt_finds_it(rig: Rig) -> None:
    saved = rig.store.call_checkpoints
    key, batch = await hold(rig)
    assert await saved.find_kept(holder(key, batch, 1)) == CallKept(set_id="s1", index=1)
    assert await saved.keep(holder(key, batch, 1), new(1, "a")) == ()
    assert await saved.keep(holder(key, batch, 1), new(1, "b")) == ("calls/s1/1.a",)
    assert (await saved.find_kept(holder(key, batch, 0))).blob is None
    again = await say(rig, key, ends=[raised(batch, 1)], held=[batch], want=1)
    (retried,) = [b for b in again.batches if b.calls[0].index == 1]
    kept = await saved.find_kept(holder(key, retried.id))
    assert kept == CallKept(set_id="s1", index=1, blob="calls/s1/1.b", size=3, sha256="00" * 32)


async def test_only_the_executor_that_holds_the_call_leaves_a_checkpoint(rig: Rig) -> None:
    saved = rig.store.call_checkpoints
    key, batch = await hold(rig)
    await say(rig, key, ends=[done(batch, 0)], held=[batch])
    old = TaskKey(key.job_id, key.rank, key.epoch + 1)
    for other in (
        holder(key, batch, 0),  # it has ended
        holder(key, batch, 2),
        holder(key, batch + 1, 1),
        holder(key, batch, 1, host="h2"),
        holder(old, batch, 1),
    ):
        with pytest.raises(Stale, match="does not hold call"):
            await saved.keep(other, new(0, "a"))
        with pytest.raises(Stale):
            await saved.find_kept(other)
    assert await saved.find_unneeded_blobs() == ()


async def test_blobs_of_calls_that_succeeded_go_and_those_of_failed_ones_stay(rig: Rig) -> None:
    saved = rig.store.call_checkpoints
    key, batch = await hold(rig, 3)
    for position in range(3):
        await saved.keep(holder(key, batch, position), new(position, "a"))
    assert await saved.find_unneeded_blobs() == ()
    ends = [done(batch, 0), raised(batch, 1, invalid=True)]
    await say(rig, key, ends=ends, held=[batch])
    assert await saved.find_unneeded_blobs() == ("calls/s1/0.a",)
    await saved.forget_blobs(["calls/s1/0.a"])
    assert await saved.find_unneeded_blobs() == ()
    names = [f"calls/s1/{index}.a" for index in range(3)]
    strange = ["calls/of-another-database/0.a", "calls/s1/odd", "a-job/0.1.a"]
    assert await saved.find_known_blobs([*names, *strange]) == {*names[1:], *strange}
