"""What every store must do about retries: decide, wait, be held, dispatch, tell. Run like
`conformance`, on both stores."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.records import EventRecord
from holdfast.core.states import JobState
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.values import JobFilter, Released, TaskBeat
from tests.store.rig import OK, STOPPED, Rig, fails

TRIPPED = TaskFacts(signal=9, trip=Trip(watchdog=Watchdog.STALL, exit_code=76, reason="silent"))
LOST = TaskFacts(lost="host_gone")


async def events_of(rig: Rig, job_id: str, kind: str) -> list[EventRecord]:
    return [event for event in await rig.events(job_id) if event.kind == kind]


async def succeed(rig: Rig, job_id: str, host: str = "h1", *, seen: bool = True) -> Any:
    await rig.admit()
    key = await rig.key(job_id)
    await rig.sync(host)
    if seen:
        await rig.sync(host, live=[key], started=[key])
    return await rig.sync(host, ended=[(key, OK)])


# ---- deciding


async def test_a_retry_waits_as_a_row_with_its_due_time(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    job = await rig.fail(job_id, max_retries=2, retry_delay=40.0)
    due = rig.now + timedelta(seconds=40)
    assert (job.state, job.wait_cause, job.wait_until, job.retry_at) == (
        JobState.WAITING,
        "back_off",
        due,
        due,
    )
    assert (job.retries_charged, job.outcome, job.cause) == (1, "requeued", Cause.NONZERO_EXIT)
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert (attempt.next_at, attempt.charged_to, attempt.retry_count) == (due, "retries", 0)
    assert attempt.policy is not None
    assert (attempt.policy.max_retries, attempt.policy.retry_delay) == (2, 40.0)
    (event,) = await events_of(rig, job_id, "job.retry_scheduled")
    assert event.data == {
        "cause": "nonzero_exit",
        "charged_to": "retries",
        "retry_count": 1,
        "max_retries": 2,
        "due_at": due.isoformat(),
    }
    assert event.message == job.reason == attempt.reason
    assert (event.attempt, event.project, event.queue) == (1, "default", "cpu")


async def test_transient_then_retry_then_success(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, max_retries=3, retry_delay=10.0)
    assert await rig.release() == Released()  # not yet
    rig.tick(10)
    assert await rig.release() == Released(retries=1)
    job = await rig.job(job_id)
    assert (job.state, job.wait_cause, job.wait_until, job.retry_at) == (
        JobState.QUEUED,
        None,
        None,
        None,
    )
    assert job.queued_at == rig.now
    answer = await succeed(rig, job_id)
    assert (answer.succeeded, answer.retried) == ((job_id,), (job_id,))
    assert await rig.kinds(job_id) == [
        "job.submitted",
        "job.reserved",
        "job.started",
        "job.draining",
        "job.requeued",
        "job.retry_scheduled",
        "job.retry_dispatched",
        "job.reserved",
        "job.started",
        "job.succeeded",
        "job.retry_succeeded",
    ]
    (event,) = await events_of(rig, job_id, "job.retry_succeeded")
    assert event.data == {"retry_count": 1}
    first, second = await rig.store.jobs.list_attempts(job_id)
    assert (second.number, second.parent, second.retry_count, second.outcome) == (
        2,
        1,
        1,
        "succeeded",
    )
    assert (second.policy, second.next_at) == (None, None)
    assert first.next_at == second.reserved_at


async def test_a_success_between_two_reports_is_told_as_a_retry_too(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, max_retries=1)
    await rig.release()
    answer = await succeed(rig, job_id, seen=False)
    assert (answer.succeeded, answer.retried) == ((job_id,), (job_id,))
    assert (await rig.kinds(job_id))[-3:] == ["job.started", "job.succeeded", "job.retry_succeeded"]


async def test_a_first_success_is_no_retry(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    assert (await succeed(rig, job_id)).retried == ()
    assert "job.retry_succeeded" not in await rig.kinds(job_id)


async def test_a_retry_that_is_done_when_its_drain_completes_has_succeeded_as_one(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, max_retries=1)
    await rig.release()
    assert job_id in await rig.admit()
    key = await rig.key(job_id)
    await rig.sync()
    await rig.sync(live=[key], started=[key])
    await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room is needed", now=rig.now)
    await rig.sync(ended=[(key, OK)])
    await rig.complete()
    assert (await rig.kinds(job_id))[-2:] == ["job.succeeded", "job.retry_succeeded"]


async def test_exhaustion_is_told_once_and_only_where_there_was_a_budget(rig: Rig) -> None:
    await rig.host()
    asked, plain = await rig.submit(), await rig.submit()
    await rig.fail(asked, max_retries=1)
    await rig.fail(plain, max_retries=0)
    await rig.release()
    job = await rig.fail(asked, max_retries=1)
    assert (job.state, job.retry_at, job.wait_cause) == (JobState.FAILED, None, None)
    assert "its one retry is spent" in job.reason
    (event,) = await events_of(rig, asked, "job.retry_exhausted")
    assert (event.data["retry_count"], event.data["max_retries"], event.data["cause"]) == (
        1,
        1,
        "nonzero_exit",
    )
    assert "due_at" not in event.data
    assert "job.retry_exhausted" not in await rig.kinds(plain)
    assert "no retries were asked for" in (await rig.job(plain)).reason


async def test_a_policy_may_forbid_its_events_but_not_the_audit(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    quiet: dict[str, Any] = {"max_retries": 2, "emit_retry_events": False}
    await rig.fail(job_id, **quiet)
    await rig.release()
    await rig.fail(job_id, **quiet)
    await rig.release()
    assert (await succeed(rig, job_id)).retried == (job_id,)
    kinds = await rig.kinds(job_id)
    told = [kind for kind in kinds if kind.startswith("job.retry_")]
    assert told == ["job.retry_dispatched", "job.retry_dispatched"]
    failed = await rig.submit()
    await rig.fail(failed, max_retries=1, emit_retry_events=False)
    await rig.release()
    await rig.fail(failed, max_retries=1, emit_retry_events=False)
    assert "job.retry_exhausted" not in await rig.kinds(failed)


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


@pytest.mark.parametrize("facts", [fails(), OK], ids=["failed", "succeeded"])
async def test_a_beat_that_comes_with_the_end_counts(rig: Rig, facts: TaskFacts) -> None:
    """A task that ends between two syncs tells of its last beat with its end; without it, its
    progress would look like none."""
    await rig.host()
    job_id, key = await rig.running()
    await rig.sync(live=[key], beats=[TaskBeat(key=key, step=1, total=10, age_seconds=0.0)])
    await rig.sync(
        ended=[(key, facts)], beats=[TaskBeat(key=key, step=7, total=None, age_seconds=0.5)]
    )
    await rig.complete(max_retries=1)
    job = await rig.job(job_id)
    assert (job.step, job.total) == (7, 10)
    assert job.beat_at is not None
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert (attempt.step, attempt.total) == (7, 10)
    assert job.best_step == (None if facts is OK else 7)


async def test_progress_is_kept_and_a_lack_of_it_ends_the_job(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    for number, (step, best, without) in enumerate(
        [(10, 10, 0), (10, 10, 1), (25, 25, 0), (25, 25, 1), (3, 25, 2)], 1
    ):
        assert job_id in await rig.admit()
        key = await rig.key(job_id)
        await rig.sync()
        beat = TaskBeat(key=key, step=step, total=100, age_seconds=0.0)
        await rig.sync(live=[key], started=[key], beats=[beat])
        await rig.sync(ended=[(key, fails())])
        await rig.complete(max_retries=9, no_progress_limit=2)
        job = await rig.job(job_id)
        assert (job.best_step, job.no_progress, job.attempts) == (best, without, number)
        await rig.release()
    assert (job.state, job.retries_charged) == (JobState.FAILED, 4)
    assert "2 attempts in a row got no further than step 25" in job.reason
    job = await rig.store.jobs.revive_job(job_id, "again", now=rig.now)
    assert (job.best_step, job.no_progress) == (None, 0)


# ---- dispatching


async def test_dispatch_leaves_an_audit(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    job = await rig.fail(job_id, max_retries=1, retry_delay=5.0)
    rig.tick(7.5)
    await rig.release()
    (event,) = await events_of(rig, job_id, "job.retry_dispatched")
    assert job.retry_at is not None
    assert event.data == {
        "retry_count": 1,
        "cause": "nonzero_exit",
        "due_at": job.retry_at.isoformat(),
        "waited_seconds": 2.5,
    }
    assert (event.attempt, event.at, event.epoch) == (1, rig.now, 2)
    assert (
        (await rig.job(job_id)).reason
        == event.message
        == "retry 1 after nonzero_exit: its back-off is over"
    )
    assert await rig.release() == Released()


async def test_the_limit_takes_the_longest_due_first_and_says_that_some_are_left(rig: Rig) -> None:
    await rig.host(slots=9)
    late = await rig.submit(start_at=(rig.now + timedelta(seconds=100)).timestamp())
    jobs = [await rig.submit() for _ in range(5)]
    for delay, job_id in zip((50.0, 30.0, 10.0, 40.0, 20.0), jobs, strict=True):
        await rig.fail(job_id, max_retries=1, retry_delay=delay)
    rig.tick(60)
    assert await rig.release(0) == Released(left=True)
    assert await rig.release(2) == Released(retries=2, left=True)
    states = [(await rig.job(i)).state for i in jobs]
    assert [s is JobState.QUEUED for s in states] == [False, False, True, False, True]
    rig.tick(40)
    assert await rig.release(2) == Released(
        started=1, retries=2, left=True
    )  # a start time does not queue behind retries
    assert (await rig.job(late)).state is JobState.QUEUED
    assert await rig.release(1) == Released(retries=1)
    assert await rig.release(1) == Released()


# ---- the kill switch


async def throw(rig: Rig, where: str, on: bool) -> None:
    if where == "cluster":
        await rig.store.settings.write_cluster_settings({"retries_enabled": on}, now=rig.now)
    else:
        await rig.store.settings.put_project("default", {"retries_enabled": on}, now=rig.now)


@pytest.mark.parametrize(
    ("where", "who"), [("cluster", "the cluster"), ("project", "project default")]
)
async def test_a_kill_switch_thrown_while_retries_wait(rig: Rig, where: str, who: str) -> None:
    """RETRY-6."""
    await rig.host()
    job_id = await rig.submit()
    job = await rig.fail(job_id, max_retries=2, retry_delay=30.0)
    await throw(rig, where, False)
    assert await rig.release() == Released()  # not due: nothing to hold yet
    rig.tick(30)
    assert await rig.release() == Released(held=1)
    held = await rig.job(job_id)
    assert (held.state, held.wait_cause, held.wait_until) == (
        JobState.WAITING,
        "retries_held",
        None,
    )
    assert (held.retry_at, held.retries_charged) == (job.retry_at, 1)
    assert held.reason == f"retry 1 after nonzero_exit: {who} holds all retries"
    for _ in range(3):
        rig.tick(1000)
        assert await rig.release() == Released()
    assert await rig.job(job_id) == held
    (event,) = await events_of(rig, job_id, "job.retry_held")
    assert event.data["held_by"] == who
    await throw(rig, where, True)
    assert await rig.release() == Released(retries=1)
    assert (await rig.job(job_id)).state is JobState.QUEUED
    (event,) = await events_of(rig, job_id, "job.retry_dispatched")
    assert event.data["waited_seconds"] == 3000.0
    assert (await rig.kinds(job_id))[-3:] == [
        "job.retry_held",
        "job.retry_resumed",
        "job.retry_dispatched",
    ]


async def test_a_retry_decided_while_held_backs_off_when_it_is_let_go(rig: Rig) -> None:
    """RETRY-5."""
    await rig.host()
    job_id = await rig.submit()
    job = await rig.fail(job_id, max_retries=1, retry_delay=100.0, held="the cluster")
    assert (job.wait_cause, job.wait_until) == ("retries_held", None)
    assert job.retry_at == rig.now + timedelta(seconds=100)
    assert "held, for the cluster holds all retries" in job.reason
    assert len(await events_of(rig, job_id, "job.retry_held")) == 1
    await throw(rig, "cluster", False)
    rig.tick(10)
    assert await rig.release() == Released()
    await throw(rig, "cluster", True)
    assert await rig.release() == Released()
    job = await rig.job(job_id)
    assert (job.wait_cause, job.wait_until) == ("back_off", job.retry_at)
    rig.tick(90)
    assert await rig.release() == Released(retries=1)


async def test_the_switch_of_one_project_leaves_the_others_alone(rig: Rig) -> None:
    await rig.host()
    ours, theirs = await rig.submit(project="ours"), await rig.submit(project="theirs")
    for job_id in (ours, theirs):
        await rig.fail(job_id, max_retries=1)
    await rig.store.settings.put_project("ours", {"retries_enabled": False}, now=rig.now)
    assert await rig.release() == Released(retries=1, held=1)
    assert (await rig.job(ours)).wait_cause == "retries_held"
    assert (await rig.job(theirs)).state is JobState.QUEUED
    # The limit's leftovers are those that may go: a held one is not waited for by the limit.
    assert await rig.release(0) == Released()
    assert await rig.store.jobs.count_waiting() == {("ours", "retries_held"): 1}


async def test_off_anywhere_is_off(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, max_retries=1)
    await throw(rig, "cluster", False)
    await throw(rig, "project", True)
    assert await rig.release() == Released(held=1)
    await throw(rig, "cluster", True)
    await throw(rig, "project", False)
    assert await rig.release() == Released()
    await rig.store.settings.put_project("default", {}, ["retries_enabled"], now=rig.now)
    assert await rig.release() == Released(retries=1)


async def test_the_environments_switch_holds_too(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, max_retries=1)
    rig.store.environment["retries_enabled"] = False  # type: ignore[attr-defined]  # both stores keep their layer there
    await throw(rig, "cluster", True)
    assert await rig.release() == Released(held=1)
    assert "the environment holds all retries" in (await rig.job(job_id)).reason
    del rig.store.environment["retries_enabled"]  # type: ignore[attr-defined]  # as above
    assert await rig.release() == Released(retries=1)


async def test_what_is_charged_to_other_budgets_is_held_and_what_costs_nothing_is_not(
    rig: Rig,
) -> None:
    await rig.host()
    tripped, preempted = await rig.submit(), await rig.submit()
    job = await rig.fail(tripped, TRIPPED, held="the cluster")
    assert (job.state, job.wait_cause, job.watchdog_charged) == (
        JobState.WAITING,
        "retries_held",
        1,
    )
    await rig.admit()
    key = await rig.key(preempted)
    await rig.sync()
    await rig.store.jobs.drain_job(preempted, Cause.PREEMPTED, "room is needed", now=rig.now)
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete(held="the cluster")
    assert (await rig.job(preempted)).state is JobState.QUEUED
    assert await rig.release() == Released(retries=1)
    (event,) = await events_of(rig, tripped, "job.retry_dispatched")
    assert event.message.startswith("its next attempt after stalled")
    assert await rig.places(tripped) == [1]  # both to the front, the later one first


async def test_a_held_or_waiting_retry_can_be_cancelled(rig: Rig) -> None:
    await rig.host()
    for held in (None, "the cluster"):
        job_id = await rig.submit()
        await rig.fail(job_id, max_retries=1, retry_delay=10.0, held=held)
        job = await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
        assert (job.state, job.wait_cause, job.retry_at) == (JobState.CANCELLED, None, None)
    rig.tick(60)
    assert await rig.release() == Released()


# ---- a person's retry


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


# ---- filters


async def test_jobs_are_found_by_retries_made_and_by_cause(rig: Rig) -> None:
    await rig.host()
    never, once, waiting, fresh = [await rig.submit() for _ in range(4)]
    await rig.fail(never, max_retries=0)
    await rig.fail(once, max_retries=1)
    await rig.release()
    await rig.fail(once, max_retries=1)
    await rig.fail(waiting, TRIPPED, max_retries=5)
    await rig.fail(waiting, max_retries=5, retry_delay=60.0)

    async def found(**fields: Any) -> set[str]:
        return {job.id for job in await rig.store.jobs.list_jobs(JobFilter(**fields))}

    assert await found(min_retries=1) == {once, waiting}
    assert await found(min_retries=2) == set()
    assert await found(max_retries=0) == {never, fresh}
    assert await found(min_retries=1, max_retries=1, states=("failed",)) == {once}
    assert await found(cause="nonzero_exit") == {never, once, waiting}


# ---- settings, rules, projects


async def test_rules_are_kept_as_they_were_written(rig: Rig) -> None:
    before = await rig.store.settings.read_settings()
    assert before.rules == ""
    text = '[[rule]]\nname = "näh"\npattern = "\\\\d"\n'
    after = await rig.store.settings.write_rules(text, now=rig.now)
    assert after > before.revision
    found = await rig.store.settings.read_settings()
    assert (found.rules, found.revision) == (text, after)
    assert await rig.store.settings.write_rules(text, now=rig.now) == after  # nothing new
    assert (await rig.kinds()).count("settings.changed") == 1
    await rig.store.settings.write_rules("", now=rig.now)
    assert (await rig.store.settings.read_settings()).rules == ""


async def test_projects(rig: Rig) -> None:
    await rig.host(gpus=4)
    assert await rig.store.settings.list_projects() == []
    empty = await rig.store.settings.get_project("nobody")
    assert (empty.name, empty.settings, empty.unfinished, empty.created_at) == (
        "nobody",
        {},
        0,
        None,
    )
    revision = (await rig.store.settings.read_settings()).revision
    made = await rig.store.settings.put_project(
        "a", {"max_retries": 3, "retry_backoff": "exponential"}, now=rig.now
    )
    assert (made.settings, made.created_at) == (
        {"max_retries": 3, "retry_backoff": "exponential"},
        rig.now,
    )
    layers = await rig.store.settings.read_settings()
    assert layers.projects == {"a": made.settings}
    assert layers.revision > revision
    rig.tick(5)
    await rig.store.settings.put_project("a", {"max_retries": 3}, now=rig.now)  # nothing new
    assert (await rig.store.settings.read_settings()).revision == layers.revision
    changed = await rig.store.settings.put_project(
        "a", {"max_retries": "5"}, ["retry_backoff"], now=rig.now
    )
    assert (changed.settings, changed.created_at) == ({"max_retries": 5}, made.created_at)
    running = await rig.submit(project="b", gpus=2)
    assert await rig.admit() == [running]
    waiting = await rig.submit(project="b", gpus=4)
    names = {
        p.name: (p.running, p.gpus, p.unfinished, p.settings)
        for p in await rig.store.settings.list_projects()
    }
    assert names == {"a": (0, 0, 0, {"max_retries": 5}), "b": (1, 2, 2, {})}
    assert [p.name for p in await rig.store.settings.list_projects()] == ["a", "b"]
    events = [e for e in await rig.events() if e.kind == "project.changed"]
    assert [(e.project, e.data["created"]) for e in events] == [("a", True), ("a", False)]
    with pytest.raises(NotFound):
        await rig.store.settings.delete_project("b", now=rig.now)  # it has no settings of its own
    await rig.store.settings.put_project("b", {}, now=rig.now)
    with pytest.raises(Conflict) as refused:
        await rig.store.settings.delete_project("b", now=rig.now)
    assert refused.value.code == "project_in_use"
    for job_id in (running, waiting):
        await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    await rig.store.settings.delete_project("b", now=rig.now)
    assert [p.name for p in await rig.store.settings.list_projects()] == ["a"]
    assert (await rig.store.settings.read_settings()).projects == {"a": {"max_retries": 5}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("no_such", 1),
        ("max_retries", -1),
        ("time_limit_seconds", 5),
        ("retry_on", "user_cancelled"),
        ("max_running", 3),
    ],
)
async def test_a_project_refuses_what_is_not_its_to_set(rig: Rig, name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        await rig.store.settings.put_project("a", {name: value}, now=rig.now)
    assert (await rig.store.settings.read_settings()).projects == {}
    with pytest.raises(ValidationError):
        await rig.store.settings.put_queue("gpu", {"max_retries": 1}, now=rig.now)


async def test_retries_go_with_their_job_when_it_is_pruned(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.fail(job_id, max_retries=1)
    await rig.release()
    await rig.fail(job_id, max_retries=1)
    rig.tick(10 * 86_400)
    assert await rig.store.jobs.prune(5, now=rig.now) == 1
    assert await rig.store.jobs.list_jobs(JobFilter()) == []
    assert [e for e in await rig.events() if e.job_id is not None] == []
