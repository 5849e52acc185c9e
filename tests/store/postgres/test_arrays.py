"""What every store must do for `store.arrays`: many jobs of one submission."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.arrays.arrays import Member
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.causes import Cause
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import Conflict, NotFound, QuotaExceeded, ValidationError
from holdfast.moves.values import ArrayFilter, JobFilter, NewArray
from tests.store.conformance.shared import succeed
from tests.store.rig import OK, START, Rig, fails

LATER = (START + timedelta(days=9)).timestamp()


def _new(
    array_id: str = "array-1",
    size: int = 5,
    at_once: int | None = None,
    digest: str = "00",
    params: tuple[dict[str, Any], ...] = (),
    **spec: Any,
) -> NewArray:
    members = [Member(index=n, params=params[n] if params else {}) for n in range(size)]
    return NewArray(
        id=array_id,
        spec=JobSpec(**{"argv": ("train", "--lr", "{lr}"), "name": "sweep", **spec}),
        queue="cpu",
        members=tuple(members),
        member_ids=tuple(f"{array_id}-m{n:03d}" for n in range(size)),
        at_once=at_once,
        digest=digest,
    )


async def _submit(rig: Rig, **fields: Any) -> ArrayRecord:
    return (await rig.store.arrays.submit_array(_new(**fields), now=rig.now)).array


async def _advance(rig: Rig) -> None:
    while (await rig.store.arrays.advance_arrays(3, now=rig.now)).left:
        pass


async def _array(rig: Rig, array_id: str = "array-1") -> ArrayRecord:
    return await rig.store.arrays.get_array(array_id)


async def _end_running(rig: Rig, *ends: tuple[str, Any]) -> None:
    """Run what can be placed, and end the named members."""
    await rig.admit()
    await rig.sync()
    keys = {job_id: await rig.key(job_id) for job_id, _ in ends}
    await rig.sync(live=list(keys.values()), started=list(keys.values()))
    await rig.sync(ended=[(keys[job_id], facts) for job_id, facts in ends])
    await rig.complete()


async def test_the_end_of_a_member_says_that_the_next_may_wait_for_it(rig: Rig) -> None:
    await rig.host()
    await _submit(rig, size=2)
    await rig.admit()
    await rig.sync()
    key = await rig.key("array-1-m000")
    await rig.sync(live=[key], started=[key])
    assert (await rig.sync(ended=[(key, OK)])).awaited


async def test_one_submission_makes_jobs_that_know_their_index(rig: Rig) -> None:
    await rig.host()
    points: tuple[dict[str, Any], ...] = ({"lr": 0.1}, {"lr": 1e-05})
    array = await _submit(rig, size=2, params=points, env={"SEED": "7"}, secrets={"TOKEN": "hush"})
    assert (array.size, array.indices, array.state) == (2, "0-1", JobState.QUEUED)
    assert array.counts == {"queued": 2}
    assert "hush" not in repr(array)
    assert await rig.admit() == ["array-1-m000", "array-1-m001"]
    offers = {o.task.key.job_id: o for o in (await rig.sync()).offers}
    spec, secrets = offers["array-1-m001"].job.spec, offers["array-1-m001"].secrets
    assert spec.argv == ("train", "--lr", "1e-05")
    assert spec.env == {
        "SEED": "7",
        "HOLDFAST_ARRAY_ID": "array-1",
        "HOLDFAST_ARRAY_INDEX": "1",
        "HOLDFAST_ARRAY_SIZE": "2",
        "HOLDFAST_PARAM_LR": "1e-05",
    }
    assert secrets == {"TOKEN": "hush"}
    job = await rig.job("array-1-m001")
    assert (job.name, job.array_id, job.array_index) == ("sweep[1]", "array-1", 1)
    assert await rig.store.arrays.find_members("array-1", [1, 7]) == {1: "array-1-m001"}
    assert (await rig.kinds("array-1-m001"))[0] == "job.submitted"
    assert [e.data["size"] for e in await rig.events() if e.kind == "array.submitted"] == [2]


async def test_only_so_many_are_at_work_at_once(rig: Rig) -> None:
    """ARRAY-1, and every member has its turn."""
    await rig.host(slots=8)
    array = await _submit(rig, size=7, at_once=2)
    assert (array.counts, array.active) == ({"queued": 2, "waiting": 5}, 2)
    waiting = await rig.job("array-1-m006")
    assert waiting.wait_cause == "array"
    assert "at most 2 at once" in waiting.reason
    done: list[str] = []
    while not (await _array(rig)).state.terminal:
        await _advance(rig)
        placed = await rig.admit()
        assert 1 <= len(placed) <= 2
        assert (await _array(rig)).active <= 2
        await _end_running(rig, *((job_id, OK) for job_id in placed))
        done += placed
    assert done == [f"array-1-m{n:03d}" for n in range(7)], "in the order of their indices"
    array = await _array(rig)
    assert (array.state, array.counts) == (JobState.SUCCEEDED, {"succeeded": 7})
    released = [e.job_id for e in await rig.events() if e.kind == "job.released"]
    assert Counter(released) == Counter(done), "once each"


async def test_each_end_makes_room_for_one_more_however_many_look(rig: Rig) -> None:
    """ARRAY-1: ends come one by one, and several processes move the line on at once."""
    await rig.host(slots=8)
    await _submit(rig, size=6, at_once=3)
    await rig.admit()
    await rig.sync()
    keys = [await rig.key(f"array-1-m{n:03d}") for n in range(3)]
    await rig.sync(live=keys, started=keys)
    for n in range(3):
        await rig.sync(live=keys[n + 1 :], ended=[(keys[n], OK)])
        await asyncio.gather(*(rig.store.arrays.advance_arrays(now=rig.now) for _ in range(3)))
        array = await _array(rig)
        assert (array.active, array.counts["queued"]) == (3, n + 1)


async def test_a_member_that_backs_off_keeps_its_turn(rig: Rig) -> None:
    await rig.host()
    await _submit(rig, size=3, at_once=1)
    first = await rig.fail("array-1-m000", fails(3), max_retries=5, retry_delay=60.0)
    assert first.wait_cause == "back_off"
    await _advance(rig)
    assert await rig.admit() == []
    assert (await _array(rig)).active == 1


async def test_a_retry_takes_the_failed_indices_alone_and_lines_up(rig: Rig) -> None:
    await rig.host()
    await _submit(rig, size=4)
    ids = [f"array-1-m{n:03d}" for n in range(4)]
    ends = (OK, fails(3), OK, fails(4))
    await _end_running(rig, *zip(ids, ends, strict=True))
    array = await _array(rig)
    assert (array.state, array.failed) == (JobState.FAILED, "1,3")
    assert array.counts == {"succeeded": 2, "failed": 2}
    assert await rig.store.arrays.retry_array("array-1", "again", now=rig.now) == 2
    array = await _array(rig)
    assert array.counts == {"succeeded": 2, "queued": 2}
    assert (await rig.job(ids[1])).state is JobState.QUEUED
    assert await rig.store.arrays.retry_array("array-1", "again", now=rig.now) == 0


async def test_retried_members_of_a_limited_array_wait_for_their_turn(rig: Rig) -> None:
    await rig.host()
    await _submit(rig, size=3, at_once=1)
    for n in range(3):
        await _advance(rig)
        await rig.fail(f"array-1-m{n:03d}", fails(3))
    assert await rig.store.arrays.retry_array("array-1", "again", now=rig.now) == 3
    assert (await _array(rig)).counts == {"waiting": 3}
    await _advance(rig)
    assert (await _array(rig)).counts == {"waiting": 2, "queued": 1}
    await rig.store.jobs.cancel_job("array-1-m000", "no", now=rig.now)
    revived = await rig.store.jobs.revive_job("array-1-m000", "yes", now=rig.now)
    assert (revived.state, revived.wait_cause) == (JobState.WAITING, "array")
    await _advance(rig)
    array = await _array(rig)
    assert (array.active, array.counts) == (1, {"waiting": 2, "queued": 1})


async def test_a_cancel_reaches_every_member_and_survives_its_caller(rig: Rig) -> None:
    await rig.host(slots=2)
    await _submit(rig, size=7, at_once=3)
    await rig.admit()
    await rig.sync()
    keys = [await rig.key(f"array-1-m{n:03d}") for n in range(2)]
    await rig.sync(live=keys, started=keys)
    array = await rig.store.arrays.cancel_array("array-1", "wrong data", now=rig.now)
    assert "wrong data" in array.reason
    with pytest.raises(Conflict):
        await rig.store.arrays.retry_array("array-1", "again", now=rig.now)
    await _advance(rig)  # another process, for all the store knows
    assert (await _array(rig)).counts == {"draining": 2, "cancelled": 5}
    await rig.sync(ended=[(key, fails(1)) for key in keys])
    await rig.complete()
    await _advance(rig)
    array = await _array(rig)
    assert (array.state, array.counts) == (JobState.CANCELLED, {"cancelled": 7})
    job = await rig.job("array-1-m006")
    assert (job.reason, job.cause) == ("wrong data", Cause.USER_CANCELLED)
    again = await rig.store.arrays.cancel_array("array-1", "once more", now=rig.now)
    assert "once more" not in again.reason
    with pytest.raises(NotFound):
        await rig.store.arrays.cancel_array("nothing", "x", now=rig.now)


async def test_a_whole_array_waits_and_a_job_waits_for_a_whole_array(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit(name="prepare")
    array = await _submit(rig, size=3, after=(parent,))
    assert array.counts == {"waiting": 3}
    assert parent in array.reason
    last = await rig.submit(after=("array-1",))
    tidy = await rig.submit(after=("array-1:any",))
    (wait,) = (await rig.store.dependencies.list_waits(["array-1-m002"], first=9))["array-1-m002"]
    assert (wait.parent, wait.state) == (parent, JobState.QUEUED)
    await _advance(rig)
    await rig.store.dependencies.settle_dependencies(now=rig.now)
    assert await rig.admit() == [parent]
    await succeed(rig, parent)
    await rig.store.dependencies.settle_dependencies(now=rig.now)
    await _advance(rig)
    ids = [f"array-1-m{n:03d}" for n in range(3)]
    assert (await _array(rig)).counts == {"queued": 3}
    await _end_running(rig, (ids[0], OK), (ids[1], OK))
    await rig.store.dependencies.settle_dependencies(now=rig.now)
    assert (await rig.job(last)).state is JobState.WAITING
    key = await rig.key(ids[2])
    await rig.sync(live=[key], started=[key])
    await rig.sync(ended=[(key, fails(3))])
    await rig.complete()
    await rig.store.dependencies.settle_dependencies(now=rig.now)
    assert (await rig.job(tidy)).state is JobState.QUEUED
    job = await rig.job(last)
    assert (job.state, job.cause) == (JobState.CANCELLED, Cause.DEPENDENCY)
    assert "sweep" in job.reason
    assert "failed" in job.reason


async def test_an_array_whose_parent_fails_is_cancelled_whole(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit(start_at=LATER)
    await _submit(rig, size=5, at_once=2, after=(parent,))
    await rig.store.jobs.cancel_job(parent, "no", now=rig.now)
    await rig.store.dependencies.settle_dependencies(now=rig.now)
    await _advance(rig)
    assert (await _array(rig)).counts == {"cancelled": 5}
    job = await rig.job("array-1-m004")
    assert job.cause is Cause.DEPENDENCY
    assert parent in job.reason


async def test_a_start_time_holds_every_member(rig: Rig) -> None:
    await rig.host()
    await _submit(rig, size=3, at_once=2, start_at=(START + timedelta(hours=1)).timestamp())
    assert await rig.admit() == []
    rig.tick(3601)
    await rig.release()
    await rig.sync()
    assert len(await rig.admit()) == 2


async def test_an_idempotency_key_names_one_array(rig: Rig) -> None:
    new = _new(digest="aa", idempotency_key="k")
    first = await rig.store.arrays.submit_array(new, now=rig.now)
    again = await rig.store.arrays.submit_array(
        _new("array-2", digest="aa", idempotency_key="k"), now=rig.now
    )
    assert (first.created, again.created, again.array.id) == (True, False, "array-1")
    with pytest.raises(Conflict) as caught:
        await rig.store.arrays.submit_array(
            _new("array-3", digest="bb", idempotency_key="k"), now=rig.now
        )
    assert caught.value.code == "idempotency_mismatch"
    assert "differs from it in sweep (its values) or secrets" in caught.value.message
    with pytest.raises(
        Conflict, match="named array array-1, and this one differs from it in at_once"
    ):
        await rig.store.arrays.submit_array(
            _new("array-4", digest="cc", idempotency_key="k", at_once=3), now=rig.now
        )
    assert len(await rig.store.jobs.list_jobs(JobFilter())) == 5


async def test_a_quota_counts_every_member_and_refuses_the_whole(rig: Rig) -> None:
    await rig.store.settings.put_project("default", {"quota_jobs": 4, "quota": "hard"}, now=rig.now)
    with pytest.raises(QuotaExceeded):
        await _submit(rig, size=5)
    assert await rig.store.jobs.list_jobs(JobFilter()) == []
    assert await rig.store.arrays.list_arrays(ArrayFilter()) == []
    await _submit(rig, size=4)


async def test_lists_know_arrays_from_jobs(rig: Rig) -> None:
    await rig.host()
    alone = await rig.submit()
    await _submit(rig, size=2)
    await _submit(rig, array_id="array-2", size=1, name="other", project="p")
    listed = await rig.store.arrays.list_arrays(ArrayFilter())
    assert [a.id for a in listed] == ["array-2", "array-1"]
    assert [a.id for a in await rig.store.arrays.list_arrays(ArrayFilter(names=("other",)))] == [
        "array-2"
    ]
    assert await rig.store.arrays.list_arrays(ArrayFilter(states=("failed",))) == []
    assert [a.id for a in await rig.store.arrays.list_arrays(ArrayFilter(before="array-2"))] == [
        "array-1"
    ]
    single = await rig.store.jobs.list_jobs(JobFilter(single=True))
    assert [job.id for job in single] == [alone]
    members = await rig.store.jobs.list_jobs(JobFilter(array_id="array-1"))
    assert [job.array_index for job in members] == [1, 0]


async def test_what_cannot_be_is_refused_whole(rig: Rig) -> None:
    with pytest.raises(ValidationError) as caught:
        await _submit(rig, after=("nothere",))
    assert caught.value.code == "unknown_job"
    assert await rig.store.jobs.list_jobs(JobFilter()) == []
    with pytest.raises(NotFound):
        await _array(rig)


async def test_an_array_is_forgotten_with_its_last_member(rig: Rig) -> None:
    await rig.host()
    await _submit(rig, size=2)
    await _end_running(rig, ("array-1-m000", OK), ("array-1-m001", OK))
    rig.tick(30 * 86_400)
    assert await rig.store.jobs.prune(1, now=rig.now) == 2
    assert await rig.store.arrays.list_arrays(ArrayFilter()) == []
