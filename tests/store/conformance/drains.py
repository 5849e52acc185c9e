"""What every store must do for `store.drains`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.causes import Cause
from holdfast.core.endings.decide import Policy
from holdfast.core.endings.drain import plan_completion
from holdfast.core.facts import TaskFacts
from holdfast.core.states import HostState, JobState, Outcome, TaskState
from holdfast.moves.values import Released, TaskBeat
from tests.store.conformance.shared import claim_gang, events_of, start_gang, succeed
from tests.store.rig import OK, STOPPED, Rig, fails

STOPPED_SECONDS = 45


async def test_completing_twice_does_it_once(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.sync(ended=[(key, fails())])
    (snap,) = await rig.store.drains.list_drains(10, now=rig.now + timedelta(seconds=40))
    assert snap.seconds == 40
    plan = plan_completion(snap.job, snap.tasks, Policy(), (), chance=0.0)
    assert plan is not None
    assert (
        await rig.store.drains.complete_drain(job_id, snap.job.epoch + 1, plan, now=rig.now)
        is False
    )
    assert await rig.store.drains.complete_drain(job_id, snap.job.epoch, plan, now=rig.now) is True
    assert await rig.store.drains.complete_drain(job_id, snap.job.epoch, plan, now=rig.now) is False
    job = await rig.job(job_id)
    assert (job.state, job.exit_code, job.cause) == (JobState.FAILED, 1, Cause.NONZERO_EXIT)
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert (attempt.outcome, attempt.charged_to, attempt.rule) == (
        Outcome.FAILED,
        "retries",
        "exit-code",
    )
    assert attempt.members[0].trigger


@pytest.mark.parametrize(
    ("delay", "on", "state", "dispatched"),
    [(0.0, True, "queued", True), (5.0, True, "waiting", False), (0.0, False, "waiting", False)],
)
async def test_a_retry_that_is_due_is_dispatched_with_its_decision(
    rig: Rig, delay: float, on: bool, state: str, dispatched: bool
) -> None:
    """Unless a kill switch was thrown since it was decided (RETRY-6); the loop then holds it."""
    await rig.host()
    job_id, key = await rig.running()
    await rig.sync(ended=[(key, fails())])
    await rig.store.settings.write_cluster_settings({"retries_enabled": on}, now=rig.now)
    assert await rig.complete(at_once=True, max_retries=1, retry_delay=delay) == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.epoch) == (state, 2)
    assert (job.retry_at is None, job.wait_cause is None) == (dispatched, dispatched)
    kinds = [event.kind for event in await rig.events(job_id)]
    assert "job.retry_scheduled" in kinds
    assert ("job.retry_dispatched" in kinds) is dispatched
    found = await rig.release()
    assert (found.retries, found.held) == (0, 0 if on else 1)


async def test_success_beats_a_drain_that_came_too_late(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.store.jobs.cancel_job(job_id, "stop", now=rig.now)
    assert (await rig.sync(ended=[(key, OK)])).draining == (job_id,)
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.SUCCEEDED


async def test_one_failing_task_drains_its_siblings(rig: Rig) -> None:
    gang, keys, where = await start_gang(rig)
    fallen, *rest = keys
    assert (await rig.sync(where[0], ended=[(fallen, fails(5))])).draining == (gang,)
    job = await rig.job(gang)
    assert (job.state, job.trigger_rank, job.drain_cause) == (
        JobState.DRAINING,
        0,
        Cause.NONZERO_EXIT,
    )
    for name in ("h1", "h2"):
        mine = [k for k in rest if where[k.rank] == name]
        answer = await rig.sync(name, live=mine)
        assert [p.key for p in answer.preempts] == mine
        assert {p.cause for p in answer.preempts} <= {Cause.SIBLING_DRAINED}
    assert await rig.store.drains.list_drains(10) == []
    await rig.sync(where[1], ended=[(rest[0], STOPPED)])
    assert await rig.complete() == []  # one still holds its host
    await rig.sync(where[2], ended=[(rest[1], fails(1))])
    assert await rig.complete(max_retries=1) == [gang]
    job = await rig.job(gang)
    assert (job.state, job.retries_charged, job.exit_code) == (JobState.WAITING, 1, 5)
    (attempt,) = await rig.store.jobs.list_attempts(gang)
    assert [m.state for m in attempt.members] == [
        TaskState.FAILED,
        TaskState.PREEMPTED,
        TaskState.FAILED,
    ]
    assert [m.trigger for m in attempt.members] == [True, False, False]
    assert attempt.trigger_rank == 0


async def test_a_gang_partly_offered_confirms_the_rest_by_itself(rig: Rig) -> None:
    for name in ("h1", "h2"):
        await rig.host(name, slots=1)
    gang = await rig.submit(tasks=2)
    await rig.admit()
    tasks = await rig.store.jobs.list_tasks(gang)
    told, untold = tasks
    await rig.sync(told.host_id or "")
    assert (await rig.store.jobs.cancel_job(gang, "stop", now=rig.now)).state is JobState.DRAINING
    # One was asked to keep a place, the other told nothing: nothing of either can run, and no end
    # has to be confirmed.
    assert [t.state for t in await rig.store.jobs.list_tasks(gang)] == [
        TaskState.PREEMPTED,
        TaskState.PREEMPTED,
    ]
    assert (await rig.sync(untold.host_id or "")).preempts == ()
    assert await rig.complete() == [gang]
    late = await rig.sync(told.host_id or "", claimed=[(told.key, 0)])
    assert late.lost == (told.key,)


async def test_a_gang_partly_launched_waits_for_those_that_were(rig: Rig) -> None:
    for name in ("h1", "h2"):
        await rig.host(name, slots=1)
    gang = await rig.submit(tasks=2)
    await rig.admit()
    tasks = await rig.store.jobs.list_tasks(gang)
    await claim_gang(rig, [t.key for t in tasks], {t.rank: t.host_id or "" for t in tasks})
    assert (await rig.store.jobs.cancel_job(gang, "stop", now=rig.now)).state is JobState.DRAINING
    assert {t.state for t in await rig.store.jobs.list_tasks(gang)} == {TaskState.PREEMPTING}
    for task in tasks:
        assert await rig.complete() == []
        await rig.sync(task.host_id or "", ended=[(task.key, STOPPED)])
    assert await rig.complete() == [gang]


async def test_a_drain_is_forced_once_and_only_what_is_left_of_it(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "make room", now=rig.now)
    epoch = (await rig.job(job_id)).epoch
    assert (
        await rig.store.drains.list_slow_drains(rig.now - timedelta(seconds=STOPPED_SECONDS)) == []
    )
    assert (await rig.sync(live=[key])).preempts[0].hard is False
    rig.tick(STOPPED_SECONDS + 1)
    slow = await rig.store.drains.list_slow_drains(rig.now - timedelta(seconds=STOPPED_SECONDS))
    assert [job.id for job in slow] == [job_id]
    assert await rig.store.drains.force_drain(job_id, epoch + 1, now=rig.now) == 0, (
        "another epoch's drain is left alone"
    )
    assert await rig.store.drains.force_drain(job_id, epoch, now=rig.now) == 1
    assert await rig.store.drains.force_drain(job_id, epoch, now=rig.now) == 0
    assert await rig.store.drains.list_slow_drains(rig.now) == []
    assert (await rig.sync(live=[key])).preempts[0].hard is True
    assert (await rig.kinds(job_id)).count("task.force_drained") == 1
    assert await rig.complete() == [], (
        "GANG-3: a task that has not confirmed its end holds its place"
    )
    assert [t.state for t in await rig.store.jobs.list_tasks(job_id)] == [TaskState.PREEMPTING]


@pytest.mark.parametrize("asked", [True, False], ids=["asked to go", "another rank fell"])
async def test_a_rank_that_survives_sigkill_takes_its_host_out_of_service_at_once(
    rig: Rig, asked: bool
) -> None:
    """GANG-3: not even while the rest of its gang still ends is its place given to anybody."""
    for name in ("h1", "h2", "h3"):
        await rig.host(name, slots=1)
    job_id = await rig.submit(tasks=3)
    assert job_id in await rig.admit()
    keys = [task.key for task in await rig.store.jobs.list_tasks(job_id)]
    where = [await rig.where(job_id, rank) for rank in range(3)]
    for name in where:
        await rig.sync(name)
    for name, key in zip(where, keys, strict=True):
        await rig.sync(name, claimed=[(key, 4711)])
    for name, key in zip(where, keys, strict=True):
        await rig.sync(name, live=[key], started=[key])
    if asked:
        await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "make room", now=rig.now)
        await rig.sync(where[0], ended=[(keys[0], STOPPED)])
    else:
        await rig.sync(where[0], ended=[(keys[0], fails(7))])
    rig.tick(60)
    await rig.sync(where[1], ended=[(keys[1], TaskFacts(stopped=True, unkillable=True))])
    assert (await rig.store.hosts.get_host(where[1])).state is HostState.QUARANTINED
    assert (await rig.job(job_id)).state is JobState.DRAINING, "the third has not ended yet"
    await rig.sync(where[0])
    small = [await rig.submit() for _ in range(2)]
    assert len(await rig.admit()) == 1, "the first host's place is free, the stuck one's is not"
    await rig.sync(where[2], ended=[(keys[2], STOPPED)])
    await rig.complete(max_retries=1)
    job = await rig.job(job_id)
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    guilty = 1 if asked else 0
    assert (job.ended_at, attempt.trigger_rank) == (None, guilty)
    assert attempt.cause == (Cause.GPU_FAULT if asked else Cause.NONZERO_EXIT)
    charged = {rank: (c.retries, c.infra) for rank, c in job.rank_charges.items()}
    assert charged == ({"1": (0, 1)} if asked else {"0": (1, 0)})
    assert [m.state for m in attempt.members][1] is TaskState.FAILED
    assert where[1] not in {t.host_id for i in small for t in await rig.store.jobs.list_tasks(i)}
    moved = [e for e in await rig.events() if e.kind == "host.moved"]
    assert [e.data["event"] for e in moved] == ["quarantine"], "once"
    assert f"rank 1 of job {job_id} survive SIGKILL" in moved[0].message


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
        "next_attempt": 2,
        "of": 3,
        "due_at": due.isoformat(),
    }
    assert job.reason == attempt.reason
    assert event.message == f"{job.reason}; attempt 2 of 3 is next"
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
        *"job.submitted job.reserved job.started job.draining job.requeued".split(),
        *"job.retry_scheduled job.retry_dispatched job.reserved job.started".split(),
        *"job.succeeded job.retry_succeeded".split(),
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


async def test_a_retry_after_a_lost_host_is_told_like_any_other(rig: Rig) -> None:
    await rig.host("h1")
    job_id, _ = await rig.running()
    await rig.host("h1")  # another incarnation: the first one's task is lost
    await rig.complete(max_retries=2)
    (event,) = await events_of(rig, job_id, "job.retry_scheduled")
    assert event.data["charged_to"] == "infra"
    assert (event.data["retry_count"], event.data["next_attempt"], event.data["of"]) == (0, 2, 3)
    assert event.message.endswith("; attempt 1 of 3 is next (start 2)")
    assert (await succeed(rig, job_id)).retried == (job_id,)
    assert (await rig.kinds(job_id))[-1] == "job.retry_succeeded"


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


async def test_a_drained_gang_whose_retry_is_due_is_queued_with_its_completion(rig: Rig) -> None:
    """Its next attempt is admission's, away from the host of the rank that fell (ADMIT-3)."""
    await rig.host(slots=2)
    await rig.host("h2", slots=2)
    job_id, keys = await rig.running_gang(2)
    await rig.sync(live=keys[1:], ended=[(keys[0], fails())])
    await rig.sync(ended=[(keys[1], STOPPED)])
    assert await rig.complete(at_once=True, max_retries=1, retry_delay=0.0) == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.attempts, job.epoch) == (JobState.QUEUED, 1, keys[0].epoch + 1)
    assert job.retries_charged == 1
    told = ["job.requeued", "job.retry_scheduled", "job.retry_dispatched"]
    assert (await rig.kinds(job_id))[-3:] == told
    assert await rig.store.jobs.list_tasks(job_id) == []
    assert await rig.admit() == [job_id]
    assert {t.host_id for t in await rig.store.jobs.list_tasks(job_id)} == {"h2"}
    old, new = await rig.store.jobs.list_attempts(job_id)
    assert (old.outcome, old.trigger_rank, new.outcome) == (Outcome.REQUEUED, 0, None)


async def test_a_notice_is_told_with_every_order_until_the_drain_is_another_one(rig: Rig) -> None:
    """EVICT-1: it is on record, so a controller that restarts meanwhile keeps it. A person's cancel
    ends it: the task then has its grace alone."""
    await rig.host()
    job_id, key = await rig.running()
    drain = rig.store.jobs.drain_job
    assert await drain(job_id, Cause.PREEMPTED, "room", notice_seconds=90.0, now=rig.now)
    assert not await drain(job_id, Cause.PREEMPTED, "again", notice_seconds=5.0, now=rig.now)
    for _ in range(2):
        (order,) = (await rig.sync(live=[key])).preempts
        assert (order.cause, order.notice_seconds) == (Cause.PREEMPTED, 90.0)
    assert (await rig.job(job_id)).drain_notice_seconds == 90.0
    for seconds, left in ((30.0, 60.0), (70.0, 0.0)):
        rig.tick(seconds)
        (task,) = await rig.store.admission.read_running(now=rig.now)
        assert (task.draining, task.notice_left_seconds) == (True, left)
    (event,) = await events_of(rig, job_id, "job.draining")
    assert event.data["notice_seconds"] == 90.0
    await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
    (order,) = (await rig.sync(live=[key])).preempts
    assert order.notice_seconds is None
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    assert (await rig.job(job_id)).drain_notice_seconds is None
