"""What holds for gangs and for hosts that are drained, in both stores: room, force, deadlines."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.states import HostState, JobState, TaskState
from tests.store.rig import OK, STOPPED, Rig, fails

STOPPED_SECONDS = 45


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


async def test_a_drain_job_under_another_epoch_changes_nothing(rig: Rig) -> None:
    await rig.host()
    job_id, _ = await rig.running()
    epoch = (await rig.job(job_id)).epoch
    assert not await rig.store.jobs.drain_job(
        job_id, Cause.PREEMPTED, "late", epoch=epoch - 1, now=rig.now
    )
    assert (await rig.job(job_id)).state is JobState.RUNNING
    assert await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "now", epoch=epoch, now=rig.now)


async def test_a_draining_host_stops_its_work_at_the_deadline_and_once(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    host = await rig.store.hosts.move_host(
        "h1", "drain", "disk swap", deadline_seconds=60, now=rig.now
    )
    assert host.drain_deadline == rig.now + timedelta(seconds=60)
    waiting = await rig.submit()
    assert await rig.admit() == [], "nothing new starts there"
    rig.tick(59)
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {}
    assert (await rig.job(job_id)).state is JobState.RUNNING
    rig.tick(2)
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {"h1": [job_id]}
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {}
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.DRAINING, Cause.HOST_DRAINED)
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.hard, order.operator_stop) == (False, False)
    assert (await rig.store.hosts.get_host("h1")).drain_deadline is None
    await rig.store.hosts.move_host("h1", "undrain", "", now=rig.now)
    assert waiting in await rig.admit()


@pytest.mark.parametrize("deadline", [None, 60.0])
async def test_a_host_that_is_scaled_down_stops_its_work_at_no_charge(
    rig: Rig, deadline: float | None
) -> None:
    await rig.host()
    job_id, key = await rig.running()
    host = await rig.store.hosts.move_host(
        "h1", "drain", "too many", scale_down=True, deadline_seconds=deadline, now=rig.now
    )
    assert host.state is HostState.DRAINING
    if deadline is not None:
        assert (await rig.job(job_id)).state is JobState.RUNNING
        rig.tick(deadline + 1)
        assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {"h1": [job_id]}
    job = await rig.job(job_id)
    assert (job.state, job.drain_cause) == (JobState.DRAINING, Cause.SCALED_DOWN)
    assert "host name-h1 is scaled down" in (job.drain_reason or "")
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.cause, order.hard, order.operator_stop) == (Cause.SCALED_DOWN, False, False)
    await rig.sync(ended=[(key, TaskFacts(signal=15, stopped=True))])
    await rig.complete()
    job = await rig.job(job_id)
    assert (job.state, job.cause, job.retries_charged, job.infra_charged) == (
        JobState.QUEUED,
        Cause.SCALED_DOWN,
        0,
        0,
    )
    assert await rig.admit() == [], "nothing new starts there"
    (moved,) = [e for e in await rig.events() if e.kind == "host.moved"]
    assert (moved.data["event"], moved.data["cause"]) == ("drain", "scaled_down")
    # It is called back, and then drained for another reason: that one counts.
    await rig.store.hosts.move_host("h1", "undrain", "", now=rig.now)
    assert job_id in await rig.admit()
    await rig.store.hosts.move_host("h1", "drain", "", deadline_seconds=60.0, now=rig.now)
    rig.tick(61)
    assert job_id in (await rig.store.hosts.drain_due_hosts(now=rig.now))["h1"]
    assert (await rig.job(job_id)).drain_cause is Cause.HOST_DRAINED


async def test_a_second_drain_of_a_host_changes_its_deadline_or_ends_the_waiting(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.store.hosts.move_host("h1", "drain", "disk swap", deadline_seconds=3600, now=rig.now)
    host = await rig.store.hosts.move_host(
        "h1", "drain", "disk swap, sooner", deadline_seconds=60, now=rig.now
    )
    assert (host.drain_deadline, host.reason) == (
        rig.now + timedelta(seconds=60),
        "disk swap, sooner",
    )
    host = await rig.store.hosts.move_host("h1", "drain", "take your time", now=rig.now)
    assert host.drain_deadline is None
    rig.tick(61)
    assert await rig.store.hosts.drain_due_hosts(now=rig.now) == {}
    await rig.store.hosts.move_host("h1", "drain", "it burns", hard=True, now=rig.now)
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.cause, order.operator_stop) == (Cause.HOST_DRAINED, True)
    assert (await rig.job(job_id)).state is JobState.DRAINING


async def test_what_runs_is_told_with_its_limits(rig: Rig) -> None:
    await rig.host(slots=4)
    job_id, _ = await rig.running(time_limit_seconds=90.0, preemptible=True, priority=7)
    off = await rig.submit(time_limit_seconds="off")
    queued = await rig.submit(time_limit_seconds=5.0, host_labels={"zone": "a"}, placement="spread")
    rig.tick(10)
    snap = await rig.store.admission.read_admission(10, now=rig.now)
    assert snap.lowest_preemptible == 7
    found = {c.job_id: c for c in snap.candidates}
    assert found[off].time_limit_seconds == float("inf")
    assert (found[queued].time_limit_seconds, found[queued].waited_seconds) == (5.0, 10.0)
    assert (found[queued].placement, dict(found[queued].host_labels)) == ("spread", {"zone": "a"})
    (task,) = await rig.store.admission.read_running(now=rig.now)
    assert (
        task.job_id,
        task.ran_seconds,
        task.time_limit_seconds,
        task.preemptible,
        task.draining,
    ) == (job_id, 10.0, 90.0, True, False)


async def test_a_job_that_has_not_started_says_since_when(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.admit()
    rig.tick(12)
    (found,) = await rig.store.admission.list_reserved(now=rig.now)
    assert (found.job.id, found.seconds) == (job_id, 12.0)
    await rig.sync()
    key = await rig.key(job_id)
    await rig.sync(live=[key], started=[key])
    assert await rig.store.admission.list_reserved(now=rig.now) == []


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


async def test_a_start_is_a_first_one_until_an_attempt_ran(rig: Rig) -> None:
    """What it has to fetch is there after a run, and not after a reservation or a start that came
    to nothing."""

    async def read_limit() -> str:
        assert await rig.admit() == [job_id]
        (found,) = await rig.store.admission.list_reserved([job_id, "another"], now=rig.now)
        assert await rig.store.admission.list_reserved(["another"], now=rig.now) == []
        return found.start_limit

    await rig.host()
    job_id = await rig.submit(tasks=2)
    assert await read_limit() == "start_timeout_seconds"
    rig.tick(31)
    assert await rig.store.admission.expire_reservations(30.0, now=rig.now) == [job_id]
    await rig.host(new=False)
    assert await read_limit() == "start_timeout_seconds", "nobody was told of the attempt before"
    keys = [claim.key for claim in (await rig.sync()).claims]
    await rig.sync(claimed=[(key, 4711) for key in keys])
    await rig.sync(live=keys, started=keys[:1])
    await rig.store.jobs.drain_job(job_id, Cause.START_TIMEOUT, "it is slow", now=rig.now)
    await rig.sync(ended=[(key, STOPPED) for key in keys])
    assert await rig.complete() == [job_id]
    assert await read_limit() == "start_timeout_seconds", "one of its ranks never ran"
    keys = [claim.key for claim in (await rig.sync()).claims]
    await rig.sync(claimed=[(key, 4711) for key in keys])
    await rig.sync(live=keys, started=keys)
    await rig.sync(ended=[(keys[0], fails()), (keys[1], STOPPED)])
    assert await rig.complete(max_retries=3) == [job_id]
    await rig.release()
    assert await read_limit() == "recovery_timeout_seconds"


async def test_a_clock_that_was_set_back_leaves_nothing_in_the_future(rig: Rig) -> None:
    """LEASE-5: what a dead host held is free a lease after the step, and not when the old time
    comes again."""
    await rig.host()
    _, held = await rig.running()
    stopping, other = await rig.running()
    waits = await rig.submit(tasks=2)
    rig.tick(20)
    await rig.sync(live=[held, other])
    assert await rig.admit() == [waits]
    await rig.store.jobs.drain_job(stopping, Cause.PREEMPTED, "make room", now=rig.now)
    rig.tick(-7200)
    since = rig.now
    await rig.store.leases.settle_clock(now=rig.now)
    assert [task.lease_until for task in await rig.store.jobs.list_tasks(held.job_id)] == [
        rig.now + timedelta(seconds=300)
    ]
    assert [found.seconds for found in await rig.store.admission.list_reserved(now=rig.now)] == [
        0.0
    ]
    assert (await rig.job(stopping)).drain_since == rig.now
    assert (await rig.store.hosts.get_host("h1")).heartbeat_at == rig.now
    before = await rig.store.jobs.list_tasks(held.job_id)
    rig.tick(10)
    await rig.store.leases.settle_clock(now=rig.now)
    assert await rig.store.jobs.list_tasks(held.job_id) == before, "what is not in the future stays"
    assert await rig.store.leases.lapse_leases(since, now=rig.now) == []
    rig.tick(310)
    lapsed = await rig.store.leases.lapse_leases(since, now=rig.now)
    assert {held.job_id, stopping} <= set(lapsed)


async def test_who_is_being_stopped_still_counts_among_the_preemptible(rig: Rig) -> None:
    """Until its room is free, whom it is stopped for must have it held back: that takes a look at
    what runs."""
    await rig.host()
    job_id, key = await rig.running(preemptible=True, priority=7)
    await rig.submit()
    await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "make room", now=rig.now)
    assert (await rig.store.admission.read_admission(10, now=rig.now)).lowest_preemptible == 7
    (task,) = await rig.store.admission.read_running(now=rig.now)
    assert (task.draining, task.preemptible) == (True, False)
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    assert (await rig.store.admission.read_admission(10, now=rig.now)).lowest_preemptible is None


async def test_a_gang_that_would_fail_by_being_stopped_is_not_preemptible(rig: Rig) -> None:
    """GANG-5: one of its ranks has finished; to stop the other would fail the job, unless it may
    start anew."""
    await rig.host()
    for on_partial in ("fail", "restart"):
        job_id, keys = await rig.running_gang(2, preemptible=True, on_partial=on_partial)
        assert [t.preemptible for t in await rig.store.admission.read_running(now=rig.now)] == [
            True,
            True,
        ]
        await rig.sync(live=[keys[1]], ended=[(keys[0], OK)])
        (task,) = await rig.store.admission.read_running(now=rig.now)
        assert task.preemptible is (on_partial == "restart")
        await rig.sync(ended=[(keys[1], OK)])
        assert (await rig.job(job_id)).state is JobState.SUCCEEDED


async def test_whose_end_came_first_is_told_by_the_hosts_own_clocks(rig: Rig) -> None:
    """DRAIN-2: both ends are reported at once, and the one that came first began the fall, whatever
    its rank."""
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


async def test_every_rank_is_told_of_all_seats_and_their_devices(rig: Rig) -> None:
    await rig.host(gpus=4)
    job_id = await rig.submit(tasks=3, gpus=1)
    assert await rig.admit() == [job_id]
    tasks = await rig.store.jobs.list_tasks(job_id)
    keys = [task.key for task in tasks]
    assert [claim.key for claim in (await rig.sync()).claims] == keys
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
