"""What every store must do for `store.jobs`."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.core.causes import Cause
from holdfast.core.states import JobState, Outcome
from holdfast.errors import Conflict, NotFound
from holdfast.moves.values import Released
from tests.store.conformance.shared import TRIPPED, events_of, succeed
from tests.store.rig import START, STOPPED, Rig, fails


async def test_cancel_in_every_state(rig: Rig) -> None:
    await rig.host(slots=8)
    waiting = await rig.submit(start_at=(START + timedelta(hours=1)).timestamp())
    await rig.store.settings.put_queue("video", {}, now=rig.now)
    queued = await rig.submit(queue="video", gpus=1)
    unoffered = await rig.submit()
    await rig.admit()
    for job_id in (waiting, queued, unoffered):
        job = await rig.store.jobs.cancel_job(job_id, "not needed", now=rig.now)
        assert (job.state, job.outcome, job.reason) == (
            JobState.CANCELLED,
            Outcome.CANCELLED,
            "not needed",
        )
        assert (await rig.kinds(job_id))[-1] == "job.cancelled"
    assert (await rig.store.jobs.list_attempts(unoffered))[0].outcome is Outcome.CANCELLED
    assert await rig.store.jobs.list_tasks(unoffered) == []

    offered = await rig.submit()
    await rig.admit()
    await rig.sync()
    assert (
        await rig.store.jobs.cancel_job(offered, "stop", now=rig.now)
    ).state is JobState.DRAINING
    running, key = await rig.running()
    assert (
        await rig.store.jobs.cancel_job(running, "stop", hard=True, now=rig.now)
    ).state is JobState.DRAINING
    orders = {p.key: p for p in (await rig.sync(live=[key])).preempts}
    assert orders[key].hard
    assert orders[key].cause is Cause.USER_CANCELLED
    offered_key = await rig.key(offered)
    assert not orders[offered_key].hard
    answer = await rig.sync(ended=[(key, STOPPED), (offered_key, STOPPED)])
    assert set(answer.draining) == {running, offered}
    assert sorted(await rig.complete()) == sorted([running, offered])
    for job_id in (running, offered):
        assert (await rig.job(job_id)).state is JobState.CANCELLED
        assert (await rig.store.jobs.cancel_job(job_id, "again", now=rig.now)).reason == "stop"
    with pytest.raises(NotFound):
        await rig.store.jobs.cancel_job("nothing", "", now=rig.now)


async def test_a_drain_turns_into_a_cancel(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    assert (
        await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room is needed", now=rig.now)
        is True
    )
    assert (
        await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room is needed", now=rig.now)
        is False
    )
    assert (await rig.sync(live=[key])).preempts[0].cause is Cause.PREEMPTED
    await rig.store.jobs.cancel_job(job_id, "never mind", now=rig.now)
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.CANCELLED


async def test_revive(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    with pytest.raises(Conflict):
        await rig.store.jobs.revive_job(job_id, "again", now=rig.now)
    await rig.sync(ended=[(key, fails())])
    await rig.complete()
    job = await rig.store.jobs.revive_job(job_id, "a person asked", now=rig.now)
    assert (job.state, job.retries_charged, job.ended_at) == (JobState.QUEUED, 0, None)
    assert (await rig.kinds(job_id))[-1] == "job.revived"
    await rig.admit()
    assert (await rig.store.jobs.list_attempts(job_id))[-1].parent == 1


async def test_a_drain_job_under_another_epoch_changes_nothing(rig: Rig) -> None:
    await rig.host()
    job_id, _ = await rig.running()
    epoch = (await rig.job(job_id)).epoch
    assert not await rig.store.jobs.drain_job(
        job_id, Cause.PREEMPTED, "late", epoch=epoch - 1, now=rig.now
    )
    assert (await rig.job(job_id)).state is JobState.RUNNING
    assert await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "now", epoch=epoch, now=rig.now)


async def test_a_held_or_waiting_retry_can_be_cancelled(rig: Rig) -> None:
    await rig.host()
    for held in (None, "the cluster"):
        job_id = await rig.submit()
        await rig.fail(job_id, max_retries=1, retry_delay=10.0, held=held)
        job = await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
        assert (job.state, job.wait_cause, job.retry_at) == (JobState.CANCELLED, None, None)
    rig.tick(60)
    assert await rig.release() == Released()


async def test_a_counted_revive_goes_on_as_after_any_other_retry(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, TRIPPED)
    await rig.fail(job_id, max_retries=1)
    await rig.release()
    job = await rig.fail(job_id, max_retries=1)
    assert (job.state, job.retries_charged, job.watchdog_charged) == (JobState.FAILED, 2, 1)
    job = await rig.store.jobs.revive_job(job_id, "once more", counted=True, now=rig.now)
    # Its last failure is charged already: this is the second retry, not the third.
    assert (job.state, job.retries_charged, job.watchdog_charged) == (JobState.QUEUED, 2, 1)
    assert job.avoid_hosts == ("h1",)
    (event,) = await events_of(rig, job_id, "job.revived")
    assert event.data == {"counted": True, "retry_count": 2}
    await rig.admit()
    assert (await rig.store.jobs.list_attempts(job_id))[-1].retry_count == 2


async def test_a_counted_revive_of_a_cancelled_job_charges_one_more(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.store.jobs.cancel_job(job_id, "stop", now=rig.now)
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    job = await rig.store.jobs.revive_job(job_id, "after all", counted=True, now=rig.now)
    assert job.retries_charged == 1
    assert (await succeed(rig, job_id)).retried == (job_id,)


@pytest.mark.parametrize("charged", [True, False])
async def test_a_counted_revive_of_a_gang_charges_the_rank_that_began_its_fall(
    rig: Rig, charged: bool
) -> None:
    """GANG-4: once, whether its failure was charged when it happened or was none that is
    retried."""
    await rig.host(slots=2)
    gang, keys = await rig.running_gang(2)
    await rig.sync(live=[keys[0]], ended=[(keys[1], fails(3))])
    await rig.sync(ended=[(keys[0], STOPPED)])
    await rig.complete(
        **(
            {"max_retries": 0}
            if charged
            else {"max_retries": 5, "eligible_causes": (Cause.UNKNOWN,)}
        )
    )
    job = await rig.job(gang)
    assert job.state is JobState.FAILED
    assert {r: c.retries for r, c in job.rank_charges.items() if c.retries} == (
        {"1": 1} if charged else {}
    )
    job = await rig.store.jobs.revive_job(gang, "once more", counted=True, now=rig.now)
    assert (job.retries_charged, {r: c.retries for r, c in job.rank_charges.items()}) == (
        1,
        {"1": 1},
    )


async def test_a_fresh_revive_forgets_all_charges(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, TRIPPED)
    await rig.fail(job_id, max_retries=0)
    job = await rig.store.jobs.revive_job(job_id, "again", now=rig.now)
    assert (job.retries_charged, job.watchdog_charged, job.avoid_hosts) == (0, 0, ())
    await rig.admit()
    assert (await rig.store.jobs.list_attempts(job_id))[-1].retry_count == 0


async def test_a_parked_job_waits_for_a_person(rig: Rig) -> None:
    await rig.host("h1", slots=1)
    await rig.host("h2", slots=1)
    gang = await rig.submit(tasks=2)
    await rig.admit()
    assert len((await rig.sync("h1")).claims) == 1
    rig.tick(31)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == [gang]
    await rig.complete(start_failure_limit=1)
    job = await rig.job(gang)
    assert (job.state, job.wait_cause, job.wait_until, job.start_failures) == (
        JobState.WAITING,
        "parked",
        None,
        1,
    )
    rig.tick(10_000)
    assert await rig.release() == Released()
    with pytest.raises(Conflict):
        await rig.store.jobs.revive_job(await rig.submit(), "not parked", now=rig.now)
    job = await rig.store.jobs.revive_job(gang, "go on", now=rig.now)
    assert (job.state, job.wait_cause, job.start_failures) == (JobState.QUEUED, None, 0)


async def test_a_person_need_not_wait_for_a_back_off(rig: Rig) -> None:
    await rig.host("h1", slots=1)
    await rig.host("h2", slots=1)
    job_id = await rig.submit()
    job = await rig.fail(job_id, max_retries=2, retry_delay=600.0)
    assert (job.state, job.wait_cause) == (JobState.WAITING, "back_off")
    job = await rig.store.jobs.revive_job(job_id, "now", now=rig.now)
    assert (job.state, job.wait_cause, job.wait_until) == (JobState.QUEUED, None, None)
    assert (job.retries_charged, len(job.avoid_hosts)) == (1, 1), (
        "it was charged when it began to wait"
    )
    assert job_id in await rig.admit()
    rig.tick(601)
    assert await rig.release() == Released()
    assert (await rig.kinds(job_id)).count("job.released") == 1
