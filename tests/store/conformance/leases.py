"""What every store must do with syncs and leases."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement, plan_admission
from holdfast.core.states import AttemptState, JobState, Outcome, TaskState
from holdfast.moves.values import HostSync, TaskBeat
from tests.store.conformance.shared import start_gang
from tests.store.rig import OK, START, Rig, fails


async def test_what_an_owner_should_know_of_a_success_is_its_reason_and_an_event(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    lost = TaskFacts(exit_code=0, notices=("3 bytes are lost: no space", "sleep was left"))
    answer = await rig.sync(ended=[(key, lost)])
    assert (answer.acked, answer.succeeded) == ((key,), (job_id,))
    job = await rig.job(job_id)
    told = "succeeded; 3 bytes are lost: no space (and 1 more: see its events)"
    assert (job.state, job.reason) == (JobState.SUCCEEDED, told)
    notices = [e.message for e in await rig.events(job_id) if e.kind == "task.notice"]
    assert notices == ["3 bytes are lost: no space", "sleep was left"]


async def test_a_job_goes_from_submission_to_success(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running(name="train", labels={"team": "a"}, secrets={"TOKEN": "hush"})
    rig.tick(10)
    beat = TaskBeat(
        key=key,
        step=4,
        total=9,
        age_seconds=2.0,
        section="eval",
        rate=0.5,
        still_seconds=7.0,
        nan_beats=3,
    )
    answer = await rig.sync(live=[key], beats=[beat])
    assert answer.renewed == ((key, 300.0),)
    job = await rig.job(job_id)
    assert (job.step, job.total, job.beat_at) == (4, 9, rig.now - timedelta(seconds=2))
    assert (job.rate, job.moved_at) == (0.5, rig.now - timedelta(seconds=7))
    task = (await rig.store.jobs.list_tasks(job_id))[0]
    assert (task.rate, task.moved_at) == (job.rate, job.moved_at)
    assert (task.section, task.nan_beats, task.lease_until, task.host_name) == (
        "eval",
        3,
        rig.now + timedelta(seconds=300),
        "name-h1",
    )
    first = rig.now - timedelta(seconds=2)
    assert task.first_beat_at == first
    rig.tick(5)
    await rig.sync(live=[key], beats=[beat])
    (task,) = await rig.store.jobs.list_tasks(job_id)
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert (task.first_beat_at, task.beat_at) == (first, rig.now - timedelta(seconds=2))
    assert attempt.first_beat_at == first
    answer = await rig.sync(ended=[(key, OK)])
    assert (answer.acked, answer.succeeded, answer.draining) == ((key,), (job_id,), ())
    job = await rig.job(job_id)
    assert (job.rate, job.moved_at) == (None, None)
    assert (job.state, job.outcome, job.exit_code, job.ended_at) == (
        JobState.SUCCEEDED,
        Outcome.SUCCEEDED,
        0,
        rig.now,
    )
    assert (job.step, job.epoch, job.attempts, job.reason) == (4, 1, 1, "succeeded")
    assert await rig.store.jobs.list_tasks(job_id) == []
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert (attempt.number, attempt.parent, attempt.state) == (1, None, AttemptState.ENDED)
    assert (attempt.outcome, attempt.exit_code, attempt.step) == (Outcome.SUCCEEDED, 0, 4)
    assert attempt.members[0].facts == OK
    assert await rig.kinds(job_id) == [
        "job.submitted",
        "job.reserved",
        "job.started",
        "job.succeeded",
    ]
    assert [e.at for e in await rig.events(job_id)] == sorted(
        e.at for e in await rig.events(job_id)
    )


async def test_a_job_that_ended_between_two_reports_was_started_too(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.admit()
    key = await rig.key(job_id)
    await rig.sync()
    rig.tick(10)
    assert (await rig.sync(ended=[(key, OK)])).succeeded == (job_id,)
    assert await rig.kinds(job_id) == [
        "job.submitted",
        "job.reserved",
        "job.started",
        "job.succeeded",
    ]
    job = await rig.job(job_id)
    assert job.started_at == rig.now - timedelta(seconds=OK.runtime_seconds)


async def test_a_job_that_failed_between_two_reports_was_started_too(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.admit()
    key = await rig.key(job_id)
    await rig.sync()
    rig.tick(10)
    await rig.sync(ended=[(key, TaskFacts(exit_code=1, runtime_seconds=1.5))])
    assert (await rig.kinds(job_id))[:4] == [
        "job.submitted",
        "job.reserved",
        "job.started",
        "job.draining",
    ]
    began = rig.now - timedelta(seconds=1.5)
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert (await rig.job(job_id)).started_at == attempt.started_at == began


async def test_a_job_that_could_not_be_started_was_not_started(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.admit()
    key = await rig.key(job_id)
    await rig.sync()
    await rig.sync(ended=[(key, TaskFacts(start_error="no such program"))])
    assert "job.started" not in await rig.kinds(job_id)
    assert (await rig.job(job_id)).started_at is None


async def test_an_offer_is_repeated_until_it_is_reported(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.admit()
    first = (await rig.sync()).offers
    rig.tick(5)
    again = (await rig.sync()).offers
    assert [o.task.key for o in first] == [o.task.key for o in again]
    (task,) = await rig.store.jobs.list_tasks(job_id)
    assert task.offered_at == START
    assert task.lease_until == rig.now + timedelta(seconds=300)
    assert (
        await rig.sync(told=[first[0].task.key])
    ).offers == ()  # an answer on its way (REPEAT-2)
    answer = await rig.sync(live=[first[0].task.key])
    assert answer.offers == ()
    assert answer.renewed == ((first[0].task.key, 300.0),)
    assert (await rig.job(job_id)).state is JobState.RESERVED


async def test_stale_writes_change_nothing(rig: Rig) -> None:
    await rig.host("h1")
    await rig.host("h2")
    job_id, key = await rig.running()
    task = (await rig.store.jobs.list_tasks(job_id))[0]
    other = "h2" if task.host_id == "h1" else "h1"
    before = (
        await rig.job(job_id),
        await rig.store.jobs.list_tasks(job_id),
        await rig.events(job_id),
    )
    rig.tick(1)
    old_epoch = TaskKey(job_id, 0, key.epoch - 1)
    wrong_rank = TaskKey(job_id, 7, key.epoch)
    answer = await rig.sync(
        other, live=[key], beats=[TaskBeat(key=key, step=9, total=9, age_seconds=0)]
    )
    assert (answer.lost, answer.renewed) == ((key,), ())
    assert (await rig.sync(other, ended=[(key, OK)])).refused == (key,)
    for stale in (old_epoch, wrong_rank):
        assert (await rig.sync(task.host_id or "", live=[key, stale])).lost == (stale,)
        assert (await rig.sync(task.host_id or "", live=[key], ended=[(stale, OK)])).refused == (
            stale,
        )
        assert (await rig.sync(task.host_id or "", live=[key], started=[stale])).lost == (stale,)
    granted = (await rig.store.jobs.list_tasks(job_id))[0].lease_until
    rig.tick(5)
    for reported in ([old_epoch], [wrong_rank], [TaskKey(job_id, 0, key.epoch + 1)]):
        assert (await rig.sync(task.host_id or "", live=reported)).renewed == ()
        await rig.sync(other, live=[key])
    assert (await rig.store.jobs.list_tasks(job_id))[
        0
    ].lease_until == granted  # no stale word renews a lease
    rotten = await rig.sync(task.host_id or "", ended=[(key, OK)], live=[], incarnation="inc-99999")
    assert (rotten.status, rotten.refused) == ("stale", (key,))
    assert (await rig.sync("nobody", live=[key])).status == "unknown"
    job, tasks, events = before
    assert await rig.job(job_id) == job
    assert await rig.events(job_id) == events
    assert [(t.state, t.step, t.epoch) for t in await rig.store.jobs.list_tasks(job_id)] == [
        (t.state, t.step, t.epoch) for t in tasks
    ]


async def test_keys_no_row_could_hold_are_lost_and_hurt_nobody(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    monsters = [
        TaskKey("x\x00y", 0, 1),
        TaskKey(job_id, 2**40, 1),
        TaskKey(job_id, 0, 2**80),
        TaskKey(job_id, -1, 1),
    ]
    beats = [
        TaskBeat(
            key=key,
            step=2**90,
            total=-(2**90),
            age_seconds=1e300,
            section="a\x00b",
            nan_beats=2**90,
        )
    ]
    good = HostSync(
        host_id="h1", incarnation=rig.incarnations["h1"], live=(*monsters, key), beats=tuple(beats)
    )
    rotten = HostSync(host_id="h2", incarnation="inc\x00-00001", live=(key,))
    answer, stranger = await rig.store.leases.sync_hosts([good, rotten], now=rig.now)
    assert (stranger.status, stranger.lost) == ("unknown", (key,))
    assert set(answer.lost) == set(monsters)
    assert answer.renewed == ((key, 300.0),)
    answer = await rig.sync(
        ended=[(m, OK) for m in monsters]
        + [(key, TaskFacts(exit_code=0, log_tail="nul \x00 here"))]
    )
    assert set(answer.refused) == set(monsters)
    assert answer.acked == (key,)
    assert (await rig.job(job_id)).state is JobState.SUCCEEDED


async def test_a_lease_lapses_only_after_its_margin_and_the_leaders_grace(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    granted = rig.now
    long_ago = granted - timedelta(days=1)
    margin = 15.0
    assert (
        await rig.store.leases.lapse_leases(long_ago, now=granted + timedelta(seconds=300 + margin))
        == []
    )
    late = granted + timedelta(seconds=300 + margin + 0.001)
    assert await rig.store.leases.lapse_leases(late - timedelta(seconds=300), now=late) == []
    assert await rig.store.leases.lapse_leases(late - timedelta(seconds=300.001), now=late) == [
        job_id
    ]
    assert await rig.store.leases.lapse_leases(long_ago, now=late) == []
    rig.now = late
    task = (await rig.store.jobs.list_tasks(job_id))[0]
    assert (task.state, task.facts) == (TaskState.FAILED, TaskFacts(lost="lease_lapsed"))
    assert (await rig.sync(ended=[(key, fails())])).refused == (key,)
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.QUEUED
    assert (await rig.sync(ended=[(key, OK)])).refused == (key,), "its drain is complete"
    assert (await rig.sync(live=[key])).lost == (key,)


async def test_a_good_end_after_a_lapse_is_taken_until_the_drain_is_complete(rig: Rig) -> None:
    """LATE-1: the work was done, and its host, which nothing could be heard of, is not blamed."""
    await rig.host()
    job_id, key = await rig.running()
    rig.tick(316)
    assert await rig.store.leases.lapse_leases(START - timedelta(days=1), now=rig.now) == [job_id]
    assert await rig.store.drains.list_drains(9, late_seconds=5.0, now=rig.now) == []
    answer = await rig.sync(ended=[(key, OK)])
    assert (answer.acked, answer.refused) == ((key,), ())
    assert (await rig.sync(ended=[(key, fails())])).acked == (key,), "a repeat changes nothing"
    assert len(await rig.store.drains.list_drains(9, late_seconds=5.0, now=rig.now)) == 1
    await rig.complete()
    job = await rig.job(job_id)
    assert (job.state, job.infra_charged, job.retries_charged) == (JobState.SUCCEEDED, 0, 0)
    assert (await rig.sync(ended=[(key, OK)])).acked == (key,)
    kinds = await rig.kinds(job_id)
    assert kinds.count("job.succeeded") == 1


async def test_a_good_end_after_a_lapse_saves_a_gang(rig: Rig) -> None:
    await rig.host()
    job_id, (first, second) = await rig.running_gang(2)
    await rig.sync(ended=[(first, OK)])
    rig.tick(316)
    assert await rig.store.leases.lapse_leases(START - timedelta(days=1), now=rig.now) == [job_id]
    assert (await rig.sync(ended=[(second, OK)])).acked == (second,)
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.SUCCEEDED


async def test_a_late_end_of_another_life_or_epoch_is_refused(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    rig.tick(316)
    await rig.store.leases.lapse_leases(START - timedelta(days=1), now=rig.now)
    other = TaskKey(key.job_id, key.rank, key.epoch + 1)
    assert (await rig.sync(ended=[(other, OK)])).refused == (other,)
    await rig.host()  # its guardian began anew
    assert (await rig.sync(ended=[(key, OK)])).refused == (key,)
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.QUEUED


async def test_a_drain_waits_only_so_long_for_a_late_end(rig: Rig) -> None:
    await rig.host()
    await rig.running()
    at = rig.tick(316)
    await rig.store.leases.lapse_leases(START - timedelta(days=1), now=at)
    drains = rig.store.drains
    assert await drains.list_drains(9, late_seconds=5.0, now=at + timedelta(seconds=4.9)) == []
    assert len(await drains.list_drains(9, late_seconds=5.0, now=at + timedelta(seconds=5))) == 1


async def test_a_drain_waits_for_no_end_from_a_dead_host(rig: Rig) -> None:
    await rig.host()
    await rig.running()
    at, long_ago = rig.tick(316), START - timedelta(days=1)
    assert await rig.store.hosts.sweep_dead_hosts(100.0, long_ago, now=at)
    await rig.store.leases.lapse_leases(long_ago, now=at)
    assert len(await rig.store.drains.list_drains(9, late_seconds=5.0, now=at)) == 1


async def test_a_lapsed_task_that_was_told_to_stop_is_stopped(rig: Rig) -> None:
    await rig.host()
    job_id, _ = await rig.running()
    await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
    late = rig.tick(316)
    assert await rig.store.leases.lapse_leases(START - timedelta(days=1), now=late) == [job_id]
    assert (await rig.store.jobs.list_tasks(job_id))[0].state is TaskState.PREEMPTED
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.CANCELLED


async def test_the_same_end_twice_is_acked_twice_and_counted_once(rig: Rig) -> None:
    await rig.host()
    good, key = await rig.running()
    bad, bad_key = await rig.running()
    for _ in range(3):
        answer = await rig.sync(ended=[(key, OK), (bad_key, fails(3))])
        assert set(answer.acked) == {key, bad_key}
        assert answer.refused == ()
    await rig.complete(max_retries=2)
    assert set((await rig.sync(ended=[(key, OK), (bad_key, fails(3))])).acked) == {key, bad_key}
    assert (await rig.kinds(good)).count("job.succeeded") == 1
    assert (await rig.kinds(bad)).count("job.draining") == 1
    assert (await rig.job(bad)).retries_charged == 1


async def test_one_host_twice_in_a_batch(rig: Rig) -> None:
    await rig.host()
    _, key = await rig.running()
    sync = HostSync(host_id="h1", incarnation="inc-00001", ended=((key, OK),))
    first, second = await rig.store.leases.sync_hosts([sync, sync], now=rig.now)
    assert first.acked == second.acked == (key,)
    assert (first.succeeded, second.succeeded) == ((key.job_id,), ())


async def test_a_gang_succeeds_when_all_are_done(rig: Rig) -> None:
    gang, keys, where = await start_gang(rig)
    for key in keys:
        assert (await rig.job(gang)).state is JobState.RUNNING
        answer = await rig.sync(where[key.rank], ended=[(key, OK)])
        assert answer.acked == (key,)
        assert (await rig.sync(where[key.rank], ended=[(key, OK)])).acked == (key,)
    assert (await rig.job(gang)).state is JobState.SUCCEEDED
    assert (await rig.kinds(gang)).count("job.succeeded") == 1
    (attempt,) = await rig.store.jobs.list_attempts(gang)
    assert [m.state for m in attempt.members] == [TaskState.DONE] * 3
    assert attempt.host_ids == tuple(where[r] for r in range(3))


async def test_a_gang_runs_whose_last_rank_began_and_finished_between_two_reports(rig: Rig) -> None:
    """Or it would look for ever as if it were starting, and be stopped for taking too long."""
    for name in ("h1", "h2"):
        await rig.host(name, slots=1)
    job_id = await rig.submit(tasks=2)
    assert await rig.admit() == [job_id]
    keys = [task.key for task in await rig.store.jobs.list_tasks(job_id)]
    where = [await rig.where(job_id, rank) for rank in range(2)]
    for name in where:
        await rig.sync(name)
    for name, key in zip(where, keys, strict=True):
        await rig.sync(name, claimed=[(key, 4711)])
    await rig.sync(where[0], live=[keys[0]], started=[keys[0]])
    assert (await rig.job(job_id)).state is JobState.RESERVED
    await rig.sync(where[1], ended=[(keys[1], OK)])
    job = await rig.job(job_id)
    assert (job.state, job.started_at) == (JobState.RUNNING, rig.now)
    assert await rig.store.admission.list_reserved(now=rig.now) == []
    assert (await rig.kinds(job_id)).count("job.started") == 1
    await rig.sync(where[0], ended=[(keys[0], OK)])
    assert (await rig.job(job_id)).state is JobState.SUCCEEDED


@pytest.mark.parametrize("over", [False, True], ids=["it runs", "it is over"])
async def test_a_rank_that_ran_before_the_barrier_is_none_of_this_attempt(
    rig: Rig, over: bool
) -> None:
    """GANG-1: a database restored from a backup gives an epoch again, and a rank of the forgotten
    attempt still runs under it."""
    for name in ("h1", "h2"):
        await rig.host(name, slots=1)
    job_id = await rig.submit(tasks=2)
    assert await rig.admit() == [job_id]
    keys = [task.key for task in await rig.store.jobs.list_tasks(job_id)]
    where = [await rig.where(job_id, rank) for rank in range(2)]
    if not over:
        answer = await rig.sync(where[0], live=[keys[0]], started=[keys[0]])
        assert (answer.lost, answer.renewed) == ((keys[0],), ())
        assert [t.state for t in await rig.store.jobs.list_tasks(job_id)] == [
            TaskState.RESERVED
        ] * 2
    answer = await rig.sync(where[0], ended=[(keys[0], OK if over else TaskFacts(signal=9))])
    assert answer.acked == (keys[0],)
    await rig.sync(where[1])
    assert await rig.complete() == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.cause, job.retries_charged, job.infra_charged) == (
        JobState.QUEUED,
        Cause.AGENT_TRANSIENT,
        0,
        1,
    )
    assert await rig.admit() == [job_id]


async def test_whose_end_came_first_is_told_by_the_hosts_own_clocks(rig: Rig) -> None:
    """DRAIN-2: both ends are reported at once, and the one that came first began the fall,
    also where its rank is higher."""
    await rig.host()
    job_id, keys = await rig.running_gang(2)
    rig.tick(60)
    victim = TaskFacts(exit_code=1, runtime_seconds=59.9, ended_ago_seconds=0.1)
    first = TaskFacts(exit_code=1, runtime_seconds=59.5, ended_ago_seconds=0.5)
    await rig.sync(ended=[(keys[0], victim), (keys[1], first)])
    ended = {t.rank: t.ended_at for t in await rig.store.jobs.list_tasks(job_id)}
    assert ended == {0: rig.now - timedelta(seconds=0.1), 1: rig.now - timedelta(seconds=0.5)}
    await rig.complete(max_retries=1)
    (attempt,) = await rig.store.jobs.list_attempts(job_id)
    assert attempt.trigger_rank == 1
    assert dict((await rig.job(job_id)).rank_charges).keys() == {"1"}


async def test_a_clock_that_lies_puts_no_end_before_its_start(rig: Rig) -> None:
    await rig.host()
    job_id, keys = await rig.running_gang(2)
    started = rig.now
    rig.tick(5)
    await rig.sync(
        live=[keys[0]], ended=[(keys[1], TaskFacts(exit_code=1, ended_ago_seconds=1e18))]
    )
    assert {t.rank: t.ended_at for t in await rig.store.jobs.list_tasks(job_id)}[1] == started


async def test_a_gang_on_one_host_is_offered_whole_in_every_answer_until_it_is_reported(
    rig: Rig,
) -> None:
    """GANG-1: one answer has all of its launches; a lost one is given again whole."""
    await rig.host(slots=3)
    job_id = await rig.submit(tasks=3)
    assert await rig.admit() == [job_id]
    keys = [task.key for task in await rig.store.jobs.list_tasks(job_id)]
    for _ in range(2):
        answer = await rig.sync()
        assert (answer.claims, [o.task.key for o in answer.offers]) == ((), keys)
        assert [[s.rank for s in o.seats] for o in answer.offers] == [[0, 1, 2]] * 3
    await rig.sync(live=keys, started=keys)
    assert (await rig.job(job_id)).state is JobState.RUNNING


async def test_every_rank_is_told_of_all_seats_and_their_devices(rig: Rig) -> None:
    await rig.host(gpus=4)
    job_id = await rig.submit(tasks=3, gpus=1, supervised=True)
    assert await rig.admit() == [job_id]
    tasks = await rig.store.jobs.list_tasks(job_id)
    keys = [task.key for task in tasks]
    assert sorted(claim.key for claim in (await rig.sync()).claims) == keys
    answer = await rig.sync(claimed=[(key, 4711 if key.rank == 0 else 0) for key in keys])
    expected = [
        (t.rank, "h1", "name-h1", tuple(t.devices), 4711 if t.rank == 0 else None) for t in tasks
    ]
    for offer in answer.offers:
        told = [
            (s.rank, s.host_id, s.host_name, tuple(s.devices), s.port or None) for s in offer.seats
        ]
        assert told == expected
    assert len({device for task in tasks for device in task.devices}) == 3


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


async def plan(rig: Rig) -> tuple[Sequence[JobPlacement], dict[str, float]]:
    snap = await rig.store.admission.read_admission(100, now=rig.now)
    found = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas)
    return found.placements, {p.job_id: 300.0 for p in found.placements}


async def test_what_is_reserved_is_offered_to_the_calls_that_wait(rig: Rig) -> None:
    """WAKE-2: in one transaction, and again to the next sync, in case the answer was lost."""
    for host in ("h1", "h2", "h3"):
        await rig.host(host, slots=2)
    gang = await rig.submit(tasks=2)
    alone = [await rig.submit() for _ in range(3)]
    placements, ttls = await plan(rig)
    here = {p.job_id: p.tasks[0].host_id for p in placements}
    polls = [rig.make_sync(host) for host in ("h1", "h2", "h3") if host != here[alone[2]]]
    applied, answers = await rig.store.leases.reserve_and_offer(
        placements, ttls, polls, now=rig.now
    )
    assert sorted(applied) == sorted([gang, *alone])
    told = {a.host_id: sorted(o.task.key for o in a.offers) for a in answers}
    assert told.keys() == set(here.values()) - {here[alone[2]]}
    assert all(a.status == "ok" and not a.claims for a in answers)
    for job_id in (gang, *alone):
        tasks = await rig.store.jobs.list_tasks(job_id)
        offered = here[job_id] in told
        assert {t.offered_at for t in tasks} == {rig.now if offered else None}
        if offered:
            assert {t.key for t in tasks} <= set(told[here[job_id]])
            assert {t.lease_until for t in tasks} == {rig.now + timedelta(seconds=300)}
    again = await rig.sync(here[gang])
    assert sorted(o.task.key for o in again.offers) == told[here[gang]]
    assert len(again.offers[0].seats) in (0, 2)


async def test_a_call_that_waits_is_asked_to_claim_its_ranks_of_a_gang(rig: Rig) -> None:
    """GANG-1: over several hosts nothing is launched before every rank has its place."""
    for host in ("h1", "h2"):
        await rig.host(host, slots=1)
    gang = await rig.submit(tasks=2)
    placements, ttls = await plan(rig)
    polls = [rig.make_sync("h1"), rig.make_sync("h2")]
    applied, answers = await rig.store.leases.reserve_and_offer(
        placements, ttls, polls, now=rig.now
    )
    assert applied == [gang]
    assert [(len(a.claims), a.offers) for a in answers] == [(1, ())] * 2


async def test_a_call_is_offered_what_it_does_not_have_and_told_of_no_stop(rig: Rig) -> None:
    """What it waits with runs, or stops; its own syncs tell it so."""
    await rig.host(slots=4)
    runs, key = await rig.running()
    stops, stopped = await rig.running()
    await rig.store.jobs.drain_job(stops, Cause.PREEMPTED, "make room", now=rig.now)
    new = await rig.submit()
    placements, ttls = await plan(rig)
    poll = rig.make_sync(live=[key, stopped])
    _, (answer,) = await rig.store.leases.reserve_and_offer(placements, ttls, [poll], now=rig.now)
    assert [o.task.key.job_id for o in answer.offers] == [new]
    assert answer.preempts == ()
    assert (await rig.job(runs)).state is JobState.RUNNING


@pytest.mark.parametrize("why", ["paused", "another incarnation", "nothing"])
async def test_a_call_is_offered_nothing_that_was_not_reserved_for_it(rig: Rig, why: str) -> None:
    await rig.host()
    job_id = await rig.submit()
    placements, ttls = await plan(rig)
    poll = rig.make_sync()
    if why == "paused":
        await rig.store.settings.pause_queue("cpu", "now", hard=False, now=rig.now)
    elif why == "another incarnation":
        await rig.host()
    else:
        placements = ()
    assert await rig.store.leases.reserve_and_offer(placements, ttls, [poll], now=rig.now) == (
        [],
        [],
    )
    assert (await rig.job(job_id)).state is JobState.QUEUED
