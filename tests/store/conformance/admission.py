"""What every store must do for `store.admission`."""

from __future__ import annotations

import math
from datetime import timedelta

import msgspec
import pytest

from holdfast.core.causes import Cause
from holdfast.core.host_faults import Hindrance
from holdfast.core.placement.plan import Candidate, JobPlacement, Share, TaskPlacement
from holdfast.core.states import JobState, Outcome
from holdfast.moves.values import Released
from tests.store.conformance.shared import events_of
from tests.store.rig import OK, START, STOPPED, Rig, fails


async def test_an_epoch_is_never_given_twice(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    seen: list[int] = [(await rig.job(job_id)).epoch]
    for _ in range(4):
        rig.tick(1)
        await rig.admit()
        key = await rig.key(job_id)
        await rig.sync()
        seen.append((await rig.job(job_id)).epoch)
        await rig.sync(ended=[(key, fails())])
        await rig.complete(max_retries=9)
        await rig.release()
        seen.append((await rig.job(job_id)).epoch)
    await rig.admit()
    rig.tick(60)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == [job_id]
    await rig.sync()
    await rig.admit()
    seen.append((await rig.job(job_id)).epoch)
    assert seen == sorted(set(seen))
    attempts = await rig.store.jobs.list_attempts(job_id)
    assert [a.number for a in attempts] == [1, 2, 3, 4, 5, 6]
    assert [a.parent for a in attempts] == [None, 1, 2, 3, 4, 5]
    assert len({a.epoch for a in attempts}) == len(attempts)


async def test_reserve_is_guarded(rig: Rig) -> None:
    await rig.host(slots=1)
    first, second = await rig.submit(), await rig.submit()

    def place(job_id: str, epoch: int = 0, incarnation: str = "inc-00001") -> JobPlacement:
        task = TaskPlacement(rank=0, host_id="h1", incarnation=incarnation, devices=())
        return rig.plan(job_id, task, epoch=epoch)

    ttls = {first: 300.0, second: 300.0, "none": 300.0}
    assert await rig.reserve([place(first, epoch=5)], ttls, now=rig.now) == []
    assert await rig.reserve([place(first, incarnation="inc-00009")], ttls, now=rig.now) == []
    assert await rig.reserve([place("none")], ttls, now=rig.now) == []
    # One slot, two placements: two leaders for a moment must not give it twice.
    assert await rig.reserve([place(first), place(second)], ttls, now=rig.now) == [first]
    assert await rig.reserve([place(second)], ttls, now=rig.now) == []
    assert await rig.reserve([place(first)], ttls, now=rig.now) == []
    assert (await rig.job(second)).epoch == 0
    await rig.store.hosts.move_host("h1", "drain", "", now=rig.now)
    await rig.sync()
    await rig.sync(ended=[(await rig.key(first), OK)])
    assert await rig.reserve([place(second)], ttls, now=rig.now) == []


async def test_one_device_is_never_given_twice(rig: Rig) -> None:
    await rig.host(gpus=2)
    ids = [await rig.submit(gpus=1) for _ in range(4)]

    def place(job_id: str, *devices: int) -> JobPlacement:
        task = TaskPlacement(rank=0, host_id="h1", incarnation="inc-00001", devices=devices)
        return rig.plan(job_id, task, gpus=1)

    ttls = dict.fromkeys(ids, 300.0)
    assert await rig.reserve([place(ids[0], 1), place(ids[1], 1)], ttls, now=rig.now) == [ids[0]]
    refused = [place(ids[1], 1), place(ids[1], 7), place(ids[1]), place(ids[1], 0, 1)]
    for placement in refused:
        assert await rig.reserve([placement], ttls, now=rig.now) == []
    assert await rig.reserve([place(ids[1], 0)], ttls, now=rig.now) == [ids[1]]


async def test_only_queues_with_hosts_headroom_and_no_pause_are_read(rig: Rig) -> None:
    await rig.host(queues=["cpu", "gpu"])
    await rig.store.settings.put_queue("gpu", {"max_running": 1}, now=rig.now)
    in_gpu = [await rig.submit(queue="gpu") for _ in range(3)]
    await rig.store.settings.put_queue("video", {}, now=rig.now)
    in_video = await rig.submit(queue="video")
    in_cpu = await rig.submit()

    async def seen() -> list[str]:
        return [
            c.job_id for c in (await rig.store.admission.read_admission(10, now=rig.now)).candidates
        ]

    assert await seen() == [*in_gpu, in_cpu]
    assert (await rig.store.admission.read_admission(10, now=rig.now)).headroom == {"gpu": 1}
    assert sorted(await rig.admit()) == sorted([in_gpu[0], in_cpu])
    assert await seen() == []
    await rig.store.settings.put_queue("gpu", {}, ["max_running"], now=rig.now)
    assert await seen() == in_gpu[1:]
    await rig.store.settings.pause_queue("gpu", "maintenance", hard=False, now=rig.now)
    assert await seen() == []
    task = TaskPlacement(rank=0, host_id="h1", incarnation="inc-00001", devices=())
    forced = rig.plan(in_gpu[1], task, queue="gpu")
    assert await rig.reserve([forced], {in_gpu[1]: 300.0}, now=rig.now) == []
    await rig.store.settings.resume_queue("gpu", now=rig.now)
    assert await seen() == in_gpu[1:]
    assert (await rig.job(in_video)).state is JobState.QUEUED
    assert [
        k for k in await rig.kinds() if k.startswith("queue.")
    ] == "queue.changed queue.changed queue.changed queue.paused queue.resumed".split()


async def test_a_silent_host_is_given_nothing(rig: Rig) -> None:
    await rig.host()
    await rig.submit()
    rig.tick(31)
    assert (await rig.store.admission.read_admission(10, now=rig.now)).hosts == ()
    await rig.sync()
    assert len((await rig.store.admission.read_admission(10, now=rig.now)).hosts) == 1


async def test_expired_reservations_go_back_to_their_place(rig: Rig) -> None:
    await rig.host(slots=1)
    first = await rig.submit()
    await rig.admit()
    second = await rig.submit()
    rig.tick(29)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == []
    rig.tick(2)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == [first]
    await rig.sync()
    snap = await rig.store.admission.read_admission(10, now=rig.now)
    assert [c.job_id for c in snap.candidates] == [first, second]
    (attempt,) = await rig.store.jobs.list_attempts(first)
    assert (attempt.outcome, attempt.charged_to) == (Outcome.EXPIRED, None)
    assert (await rig.job(first)).attempts == 1
    await rig.admit()
    await rig.sync()
    rig.tick(60)
    assert (
        await rig.store.admission.expire_reservations(30, now=rig.now) == []
    )  # offered: left to its lease
    assert (await rig.store.jobs.list_attempts(first))[-1].number == 2


async def test_start_times_release_jobs(rig: Rig) -> None:
    await rig.host()
    due = await rig.submit(start_at=(START + timedelta(seconds=60)).timestamp())
    past = await rig.submit(start_at=(START - timedelta(seconds=60)).timestamp())
    job = await rig.job(due)
    assert (job.state, job.wait_cause, job.wait_until) == (
        JobState.WAITING,
        "start_time",
        START + timedelta(seconds=60),
    )
    assert (await rig.job(past)).state is JobState.QUEUED
    assert (await rig.store.admission.release_due(now=rig.tick(59))).started == 0
    assert (await rig.store.admission.release_due(now=rig.tick(1))).started == 1
    assert (await rig.job(due)).state is JobState.QUEUED
    assert await rig.kinds(due) == ["job.submitted", "job.released"]


async def test_a_gang_is_reserved_whole_or_not_at_all(rig: Rig) -> None:
    await rig.host("h1", slots=2)
    gang = await rig.submit(tasks=3)
    assert await rig.admit() == []
    seats = [
        TaskPlacement(rank=r, host_id="h1", incarnation="inc-00001", devices=()) for r in range(3)
    ]
    together = [msgspec.structs.replace(seats[0], count=count) for count in (2, 3)]
    for given in (seats, seats[:2], together[:1], together[1:]):
        part = rig.plan(gang, *given)
        assert await rig.reserve([part], {gang: 300.0}, now=rig.now) == []
    assert await rig.store.jobs.list_tasks(gang) == []
    await rig.host("h2", slots=2)
    part = rig.plan(gang, together[0], msgspec.structs.replace(seats[2], host_id="h2"))
    assert await rig.reserve([part], {gang: 300.0}, now=rig.now) == [gang]
    ranks = await rig.store.jobs.list_tasks(gang)
    assert [(t.key.rank, t.host_id) for t in ranks] == [(0, "h1"), (1, "h1"), (2, "h2")]


async def test_a_rank_whose_place_is_not_kept_frees_the_whole_gang(rig: Rig) -> None:
    """Three reserved, one dies before claiming: nothing ever starts, and the others are free at
    once."""
    for name in ("h1", "h2", "h3"):
        await rig.host(name, slots=1)
    gang = await rig.submit(tasks=3)
    await rig.admit()
    tasks = await rig.store.jobs.list_tasks(gang)
    for task in tasks[:2]:
        await rig.sync(task.host_id or "")
        assert (await rig.sync(task.host_id or "", claimed=[(task.key, 1)])).offers == ()
    rig.tick(31)
    assert await rig.store.admission.expire_reservations(30, now=rig.now) == [gang]
    assert await rig.complete() == [gang]
    job = await rig.job(gang)
    assert (job.state, job.start_failures, job.retries_charged, job.avoid_hosts) == (
        JobState.QUEUED,
        1,
        0,
        (tasks[2].host_id,),
    )
    assert (
        f"the places of rank 2 on name-{tasks[2].host_id} were not claimed within 30 s"
        in job.reason
    )
    answer = await rig.sync(tasks[0].host_id or "", claimed=[(tasks[0].key, 1)])
    assert (answer.offers, answer.lost) == ((), (tasks[0].key,))


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
    keys = [offer.task.key for offer in (await rig.sync()).offers]
    await rig.sync(live=keys, started=keys[:1])
    await rig.store.jobs.drain_job(job_id, Cause.START_TIMEOUT, "it is slow", now=rig.now)
    await rig.sync(ended=[(key, STOPPED) for key in keys])
    assert await rig.complete() == [job_id]
    assert await read_limit() == "start_timeout_seconds", "one of its ranks never ran"
    keys = [offer.task.key for offer in (await rig.sync()).offers]
    await rig.sync(live=keys, started=keys)
    await rig.sync(ended=[(keys[0], fails()), (keys[1], STOPPED)])
    assert await rig.complete(max_retries=3) == [job_id]
    await rig.release()
    assert await read_limit() == "recovery_timeout_seconds"


async def test_who_is_being_stopped_still_counts_among_the_preemptible(rig: Rig) -> None:
    """Until the room is free it must be held back for the job that needs it, which takes a look at
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


async def test_without_quotas_admission_knows_of_none(rig: Rig) -> None:
    await rig.host()
    await rig.store.settings.put_project("p", {"max_retries": 2}, now=rig.now)
    await rig.submit(project="p")
    snapshot = await rig.store.admission.read_admission(10, now=rig.now)
    assert snapshot.quotas == {}
    assert [c.project for c in snapshot.candidates] == ["p"]


async def test_whatever_holds_room_counts_and_what_waits_does_not(rig: Rig) -> None:
    await rig.host(slots=9)
    await rig.store.settings.put_project("p", {"quota_jobs": 1}, now=rig.now)
    job_id, key = await rig.running(project="p")
    later = await rig.submit(project="p")
    await rig.store.jobs.drain_job(job_id, Cause.PREEMPTED, "room is needed", now=rig.now)
    assert (await rig.job(job_id)).state is JobState.DRAINING
    assert await rig.admit() == []
    await rig.sync(ended=[(key, STOPPED)])
    await rig.complete()
    assert await rig.admit() == [job_id]  # it goes to the front, and counts like any other
    await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    assert await rig.admit() == [later]


async def test_a_retried_attempt_counts_like_any_other(rig: Rig) -> None:
    await rig.host(slots=9)
    await rig.store.settings.put_project("p", {"quota_jobs": 1}, now=rig.now)
    first, second = await rig.submit(project="p"), await rig.submit(project="p")
    await rig.fail(first, max_retries=1, retry_delay=10.0)
    assert await rig.admit() == [second]  # a back-off holds no room
    rig.tick(10)
    await rig.release()
    assert await rig.admit() == []
    await rig.store.jobs.cancel_job(second, "", now=rig.now)
    assert await rig.admit() == [first]


async def test_a_project_at_its_limit_does_not_keep_the_others_from_being_looked_at(
    rig: Rig,
) -> None:
    await rig.host(slots=9)
    await rig.store.settings.put_project("p", {"quota_jobs": 1}, now=rig.now)
    mine = [await rig.submit(project="p", priority=90) for _ in range(5)]
    other = await rig.submit(project="q", priority=10)
    assert await rig.admit(limit=2) == mine[:1]
    assert await rig.admit(limit=2) == [other]


async def test_the_clusters_quota_is_each_projects(rig: Rig) -> None:
    await rig.host(slots=9)
    await rig.store.settings.write_cluster_settings({"quota_jobs": 1}, now=rig.now)
    await rig.store.settings.put_project("free", {"quota_jobs": None}, now=rig.now)
    a = [await rig.submit(project="a") for _ in range(2)]
    b = [await rig.submit(project="b") for _ in range(2)]
    free = [await rig.submit(project="free") for _ in range(2)]
    assert await rig.admit() == [a[0], b[0], *free]


async def test_the_environments_quota_is_the_last_word_but_the_default(rig: Rig) -> None:
    await rig.host(slots=9)
    rig.store.environment["quota_jobs"] = 1  # type: ignore[attr-defined]  # both stores keep their layer there
    jobs = [await rig.submit(project="a") for _ in range(2)]
    assert await rig.admit() == jobs[:1]
    await rig.store.settings.put_project("a", {"quota_jobs": 2}, now=rig.now)
    assert await rig.admit() == jobs[1:]


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
    assert "held, because the cluster holds all retries" in job.reason
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


async def test_without_shares_admission_knows_of_none(rig: Rig) -> None:
    await rig.host()
    await rig.store.settings.put_project("p", {"quota_jobs": 2}, now=rig.now)
    await rig.submit(project="p")
    assert (await rig.store.admission.read_admission(9, now=rig.now)).shares == {}


async def test_the_clusters_share_is_each_projects(rig: Rig) -> None:
    await rig.store.settings.write_cluster_settings({"share_gpus": 4}, now=rig.now)
    await rig.store.settings.put_project("none", {"share_gpus": None}, now=rig.now)
    await rig.host()
    for project in ("none", "some"):
        await rig.submit(project=project)
    shares = (await rig.store.admission.read_admission(9, now=rig.now)).shares
    assert shares == {"none": Share(), "some": Share(gpus=4)}


async def test_what_is_within_a_share_is_not_hidden_by_what_borrows(rig: Rig) -> None:
    """SHARE-1: the top of each project below its share comes first, though others fill the
    queue."""
    await rig.host(gpus=2)
    await rig.store.settings.put_project("p", {"share_gpus": 2, "share_cpu_slots": 1}, now=rig.now)
    others = [await rig.submit(project="q", priority=90) for _ in range(6)]
    large = await rig.submit(project="p", gpus=3)
    mine = await rig.submit(project="p", gpus=1, tasks=2)
    cpu = await rig.submit(project="p", priority=1)
    urgent = await rig.submit(project="p", gpus=2, priority=60)
    elsewhere = await rig.submit(project="p", queue="gpu", gpus=1)
    snapshot = await rig.store.admission.read_admission(4, now=rig.now)
    owned = [urgent, mine, elsewhere, cpu]
    assert [c.job_id for c in snapshot.candidates] == [*owned, *others[:4]]
    await rig.store.settings.put_queue("cpu", {}, now=rig.now)
    await rig.store.settings.pause_queue("cpu", "now", hard=False, now=rig.now)
    snapshot = await rig.store.admission.read_admission(4, now=rig.now)
    assert [c.job_id for c in snapshot.candidates] == [elsewhere]
    assert large not in owned


async def test_a_candidate_says_the_same_whether_a_quota_or_a_share_is_set(rig: Rig) -> None:
    """Under a share a container job went to a host without its engine, because one of the three
    reads did not say that the job needs one."""
    await rig.host()
    job_id = await rig.submit(
        project="p", image="a", runtime="podman", placement="spread", tasks=2, priority=7,
        host_labels={"disk": "fast"}, time_limit_seconds="off", lease_ttl_seconds=45.0,
        memory_bytes=1 << 20, cpus=2,
    )  # fmt: skip
    other = await rig.submit(project="p", supervised=True, time_limit_seconds=90.0)
    rig.tick(5)

    async def read() -> list[Candidate]:
        found = (await rig.store.admission.read_admission(9, now=rig.now)).candidates
        return sorted(found, key=lambda candidate: candidate.job_id)

    plain = await read()
    assert [c.job_id for c in plain] == [job_id, other]
    assert (plain[0].runtime, plain[0].placement, plain[0].host_labels, plain[0].waited_seconds) == (
        "podman", "spread", {"disk": "fast"}, 5.0,
    )  # fmt: skip
    assert plain[1].supervised
    await rig.store.settings.put_project("p", {"quota_jobs": 9}, now=rig.now)
    assert await read() == plain
    await rig.store.settings.put_project("p", {"share_cpu_slots": 8}, ["quota_jobs"], now=rig.now)
    assert await read() == plain


async def test_what_runs_says_whether_it_may_give_its_room_back(rig: Rig) -> None:
    """A stop of an interactive job would end it, and a gang with finished ranks would fail
    (GANG-5)."""
    await rig.host(slots=8)
    for spec in ({}, {"interactive": True}, {"preemptible": True}):
        _, key = await rig.running(project="p", **spec)
        (task,) = await rig.store.admission.read_running(now=rig.now)
        assert (task.project, task.stoppable, task.preemptible) == (
            "p",
            not spec.get("interactive"),
            bool(spec.get("preemptible")),
        )
        await rig.sync(ended=[(key, OK)])


async def test_admission_reads_how_long_a_job_should_take(rig: Rig) -> None:
    await rig.host()
    await rig.submit(expected_seconds=90.0, time_limit_seconds=120.0, name="x")
    await rig.submit(time_limit_seconds="off")
    found = (await rig.store.admission.read_admission(10, now=rig.now)).candidates
    seen = [(c.expected_seconds, c.time_limit_seconds, c.kin, c.span_seconds) for c in found]
    assert seen == [(90.0, 120.0, "x", 90.0), (None, math.inf, "", math.inf)]


async def test_an_app_that_a_host_cannot_run_gets_it_no_executors(rig: Rig) -> None:
    """ABLE-1: by whichever road a job comes to a host."""
    await rig.host("h1", labels={"app/hole": "yes"})
    await rig.sync("h1", faults=[Hindrance(part="apps", apps=("hole",), reason="no module x")])
    job_id = await rig.submit(host_labels={"app/hole": "yes"})
    assert await rig.admit() == []
    other = await rig.submit()
    assert await rig.admit() == [other], "the rest of the host works on"
    await rig.sync("h1", faults=[])
    assert await rig.admit() == [job_id]
