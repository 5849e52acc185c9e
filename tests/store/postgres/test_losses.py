"""What a stop would lose, as PostgreSQL tells it: saved checkpoints, and those that attempts did not
go on from (UNSAVED-1, UNSAVED-2)."""

from __future__ import annotations

from holdfast.core.ids import TaskKey
from holdfast.core.placement.types import RunningTask
from holdfast.moves.checkpoints import UNUSED, NewCheckpoint
from tests.store.rig import Rig, fails


async def save(rig: Rig, key: TaskKey, step: int) -> None:
    here = ("h1", rig.incarnations["h1"], key)
    new = NewCheckpoint(blob=f"{key.rank}.{step}", size=1, sha256=bytes(32), step=step)
    await rig.store.checkpoints.add_checkpoint(*here, new, 2, now=rig.now)


async def read(rig: Rig) -> list[RunningTask]:
    return await rig.store.admission.read_running(now=rig.now)


async def restart(rig: Rig, key: TaskKey) -> TaskKey:
    """Have the job's attempt fail and the next one run."""
    await rig.sync(ended=[(key, fails())])
    await rig.complete(at_once=True, max_retries=9, retry_delay=0.0)
    await rig.admit()
    await rig.sync()
    again = await rig.key(key.job_id)
    await rig.sync(live=[again], started=[again])
    return again


async def test_a_gang_loses_all_since_the_oldest_of_its_ranks_newest_checkpoints(rig: Rig) -> None:
    """UNSAVED-1: a rank that never saves, as where only one of them writes for all, does not count."""
    await rig.host(slots=3)
    _, keys = await rig.running_gang(3)
    assert {(t.saved_seconds, t.saved_step) for t in await read(rig)} == {(None, None)}
    await save(rig, keys[0], 100)
    await save(rig, keys[1], 100)
    rig.tick(50.0)
    await save(rig, keys[0], 200)
    rig.tick(7.0)
    assert {(t.saved_seconds, t.saved_step) for t in await read(rig)} == {(57.0, 100)}
    await save(rig, keys[1], 200)
    rig.tick(1.0)
    assert {(t.saved_seconds, t.saved_step) for t in await read(rig)} == {(8.0, 200)}


async def test_an_attempt_that_did_not_go_on_is_counted_once_and_told(rig: Rig) -> None:
    """UNSAVED-2."""
    await rig.host(slots=2)
    job_id, key = await rig.running(preempt_min_run_seconds=5.0)
    other, _ = await rig.running()
    for times in range(3):
        counted = {t.job_id: t.broken for t in await read(rig)}
        assert counted == {job_id: times, other: 0}
        await save(rig, key, 100 + times)
        old, key = key, await restart(rig, key)
        told = rig.store.checkpoints.note_broken
        await told("h1", [(old, 0, 100)], now=rig.now)
        await told("h9", [(key, 0, 100)], now=rig.now)
        assert {t.broken for t in await read(rig) if t.job_id == job_id} == {times}
        for _ in range(2):
            await told("h1", [(key, 3, 100 + times)], now=rig.now)
    events = [e for e in await rig.events(job_id) if e.kind == UNUSED]
    assert [(e.attempt, e.data) for e in events] == [
        (number, {"step": 3, "given": 98 + number}) for number in (2, 3, 4)
    ]
    assert "began at step 3, below the step 100 of the checkpoint" in events[0].message
    (task,) = [t for t in await read(rig) if t.job_id == job_id]
    assert task.min_run_seconds == 5.0
