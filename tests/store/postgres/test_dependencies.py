"""What every store must do for `store.dependencies`: jobs that wait for the end of others."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast.core.causes import Cause
from holdfast.core.dependencies import Wants
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import ValidationError
from holdfast.moves.values import Advanced, NewJob
from tests.store.conformance.shared import succeed
from tests.store.rig import OK, START, Rig, fails


async def _settle(rig: Rig) -> Advanced:
    return await rig.store.dependencies.settle_dependencies(now=rig.now)


LATER = (START + timedelta(days=9)).timestamp()


async def _end(rig: Rig, job_id: str, state: JobState) -> None:
    if state is JobState.SUCCEEDED:
        await succeed(rig, job_id)
    elif state is JobState.FAILED:
        await rig.fail(job_id, fails(3))
    else:
        await rig.store.jobs.cancel_job(job_id, "not needed", now=rig.now)
    assert (await rig.job(job_id)).state is state


async def test_an_end_says_that_a_dependant_waits_for_it(rig: Rig) -> None:
    """Else the leader would hear of it a second later, where the host has no room to offer."""
    await rig.host()
    parent = await rig.submit(name="prepare")
    await rig.submit(after=(parent,))
    assert (await succeed(rig, parent)).awaited


MET = {
    Wants.OK: {JobState.SUCCEEDED},
    Wants.ANY: {JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED},
    Wants.FAILED: {JobState.FAILED},
}


@pytest.mark.parametrize("end", [JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED])
@pytest.mark.parametrize("wants", list(Wants))
@pytest.mark.parametrize("late", [False, True])
async def test_a_dependant_goes_as_its_parent_went(
    rig: Rig, wants: Wants, end: JobState, late: bool
) -> None:
    """AFTER-1, also where the parent has ended before the dependant was submitted."""
    await rig.host()
    parent = await rig.submit(name="prepare")
    if late:
        await _end(rig, parent, end)
        await _settle(rig)
    child = await rig.submit(after=(f"{parent}:{wants}",))
    if not late:
        job = await rig.job(child)
        assert (job.state, job.wait_cause, job.queued_at) == (JobState.WAITING, "dependency", None)
        assert parent in job.reason
        assert "prepare" in job.reason
        (wait,) = (await rig.store.dependencies.list_waits([child], first=9))[child]
        assert (wait.parent, wait.wants, wait.state) == (parent, wants, JobState.QUEUED)
        assert child not in await rig.admit()
        assert await _settle(rig) == Advanced()
        await _end(rig, parent, end)
        settled = await _settle(rig)
        assert settled.released + settled.cancelled == 1
    job = await rig.job(child)
    if end in MET[wants]:
        assert (job.state, job.wait_cause) == (JobState.QUEUED, None)
        assert (await rig.kinds(child))[-1] == "job.released"
    else:
        assert (job.state, job.cause) == (JobState.CANCELLED, Cause.DEPENDENCY)
        assert parent in job.reason
        assert "prepare" in job.reason
        assert (await rig.kinds(child))[-1] == "job.cancelled"
    assert await rig.store.dependencies.list_waits([child], first=9) == {}
    assert await _settle(rig) == Advanced()


async def test_a_cancel_runs_down_the_chain(rig: Rig) -> None:
    await rig.host()
    first = await rig.submit()
    second = await rig.submit(after=(first,))
    third = await rig.submit(after=(second,))
    anyway = await rig.submit(after=(f"{third}:any",))
    await _end(rig, first, JobState.FAILED)
    while (await _settle(rig)).left:
        pass
    for job_id, parent in ((second, first), (third, second)):
        job = await rig.job(job_id)
        assert (job.state, job.cause) == (JobState.CANCELLED, Cause.DEPENDENCY)
        assert parent in job.reason
    assert (await rig.job(anyway)).state is JobState.QUEUED


async def test_all_parents_must_end_and_the_first_wrong_end_decides(rig: Rig) -> None:
    await rig.host()
    a, b, c = await rig.submit(), await rig.submit(), await rig.submit(start_at=LATER)
    both = await rig.submit(after=(a, b))
    doomed = await rig.submit(after=(a, c))
    await _end(rig, a, JobState.SUCCEEDED)
    assert (await _settle(rig)).released == 0
    (wait,) = (await rig.store.dependencies.list_waits([both], first=9))[both]
    assert wait.parent == b
    await _end(rig, c, JobState.CANCELLED)
    await _settle(rig)
    assert (await rig.job(doomed)).state is JobState.CANCELLED
    key = await rig.key(b)
    await rig.sync(live=[key], started=[key])
    await rig.sync(ended=[(key, OK)])
    await _settle(rig)
    assert (await rig.job(both)).state is JobState.QUEUED


async def test_a_start_time_is_waited_for_after_the_parents(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit()
    child = await rig.submit(after=(parent,), start_at=(START + timedelta(hours=1)).timestamp())
    await _end(rig, parent, JobState.SUCCEEDED)
    await _settle(rig)
    job = await rig.job(child)
    assert (job.state, job.wait_cause) == (JobState.WAITING, "start_time")
    rig.tick(3601)
    await rig.release()
    assert (await rig.job(child)).state is JobState.QUEUED


async def test_a_start_time_alone_does_not_release(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit()
    child = await rig.submit(after=(parent,), start_at=(START + timedelta(minutes=1)).timestamp())
    rig.tick(3600)
    await rig.release()
    assert (await rig.job(child)).wait_cause == "dependency"
    await rig.sync()
    await _end(rig, parent, JobState.SUCCEEDED)
    await _settle(rig)
    assert (await rig.job(child)).state is JobState.QUEUED


async def test_a_retried_parent_brings_no_dependant_back(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit()
    child = await rig.submit(after=(parent,))
    await _end(rig, parent, JobState.FAILED)
    await _settle(rig)
    await rig.store.jobs.revive_job(parent, "again", now=rig.now)
    await succeed(rig, parent)
    await _settle(rig)
    assert (await rig.job(child)).state is JobState.CANCELLED


async def test_a_parent_retried_before_the_loop_saw_it_is_waited_for_again(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit()
    child = await rig.submit(after=(parent,))
    await _end(rig, parent, JobState.FAILED)
    await rig.store.jobs.revive_job(parent, "again", now=rig.now)
    assert await _settle(rig) == Advanced()
    await succeed(rig, parent)
    await _settle(rig)
    assert (await rig.job(child)).state is JobState.QUEUED


async def test_a_dependant_that_a_person_cancelled_and_retried_waits_no_more(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit(start_at=LATER)
    child = await rig.submit(after=(parent,))
    await rig.store.jobs.cancel_job(child, "no", now=rig.now)
    await rig.store.jobs.revive_job(child, "yes", now=rig.now)
    assert (await rig.job(child)).state is JobState.QUEUED
    await rig.fail(child, fails(3), max_retries=5, retry_delay=60.0)
    assert (await rig.job(child)).wait_cause == "back_off"
    await _end(rig, parent, JobState.CANCELLED)
    await _settle(rig)
    assert (await rig.job(child)).wait_cause == "back_off", "it is no dependant any more"


async def test_an_unknown_parent_is_refused_and_nothing_is_written(rig: Rig) -> None:
    jobs = [
        NewJob(id="x1", spec=JobSpec(argv=("a",)), queue="cpu"),
        NewJob(id="x2", spec=JobSpec(argv=("a",), after=("nothere",)), queue="cpu"),
    ]
    with pytest.raises(ValidationError) as caught:
        await rig.store.jobs.submit_jobs(jobs, now=rig.now)
    assert (caught.value.code, caught.value.field) == ("unknown_job", "after")
    assert "nothere" in caught.value.message
    assert await rig.store.jobs.get_jobs(["x1", "x2"]) == {}


async def test_many_dependants_go_in_batches(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit()
    children = [await rig.submit(after=(parent,)) for _ in range(7)]
    await _end(rig, parent, JobState.SUCCEEDED)
    rounds = 0
    while (await rig.store.dependencies.settle_dependencies(3, now=rig.now)).left:
        rounds += 1
    assert rounds == 2
    assert {(await rig.job(c)).state for c in children} == {JobState.QUEUED}


async def test_a_parent_is_kept_until_its_dependants_know(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit()
    child = await rig.submit(after=(parent,))
    await _end(rig, parent, JobState.SUCCEEDED)
    rig.tick(30 * 86_400)
    assert await rig.store.jobs.prune(1, now=rig.now) == 0
    await _settle(rig)
    assert (await rig.job(child)).state is JobState.QUEUED
    assert await rig.store.jobs.prune(1, now=rig.now) == 1


async def test_two_that_settle_at_once_release_once(rig: Rig) -> None:
    await rig.host()
    parent = await rig.submit()
    children = [await rig.submit(after=(parent,)) for _ in range(5)]
    await _end(rig, parent, JobState.SUCCEEDED)
    both = await asyncio.gather(_settle(rig), _settle(rig))
    assert sum(settled.released for settled in both) == 5
    for child in children:
        assert (await rig.kinds(child)).count("job.released") == 1
