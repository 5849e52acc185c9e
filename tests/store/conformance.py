"""What every store must do. `test_memory` and `test_postgres` run all of it, each with its own
`rig` fixture."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest

from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement, TaskPlacement
from holdfast.core.run_seed import SEED_VARIABLE, mint_secrets
from holdfast.core.spec import JobSpec
from holdfast.core.states import AttemptState, HostState, JobState, Outcome, TaskState
from holdfast.errors import Conflict, NotFound, Stale, ValidationError
from holdfast.moves.values import HostSync, JobFilter, LogAppend, NewJob, TaskBeat
from holdfast.wire.agent import Forensics, HostFacts
from tests.store.rig import OK, START, STOPPED, Rig, fails

HASH = b"0123456789abcdef0123456789abcdef"

# ---- the whole way


async def test_a_job_goes_from_submission_to_success(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running(name="train", labels={"team": "a"}, secrets={"TOKEN": "hush"})
    rig.tick(10)
    beat = TaskBeat(key=key, step=4, total=9, age_seconds=2.0, section="eval")
    answer = await rig.sync(live=[key], beats=[beat])
    assert answer.renewed == ((key, 300.0),)
    job = await rig.job(job_id)
    assert (job.step, job.total, job.beat_at) == (4, 9, rig.now - timedelta(seconds=2))
    task = (await rig.store.jobs.list_tasks(job_id))[0]
    assert (task.section, task.lease_until, task.host_name) == (
        "eval",
        rig.now + timedelta(seconds=300),
        "name-h1",
    )
    rig.tick(5)
    answer = await rig.sync(ended=[(key, OK)])
    assert (answer.acked, answer.succeeded, answer.draining) == ((key,), (job_id,), ())
    job = await rig.job(job_id)
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


async def test_secrets_reach_the_host_and_nobody_else(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit(secrets={"TOKEN": "hush-hush"})
    await rig.admit()
    (offer,) = (await rig.sync()).offers
    assert offer.secrets == {"TOKEN": "hush-hush"}
    assert offer.job.spec.secrets == {"TOKEN": ""}
    shown = [
        await rig.job(job_id),
        await rig.store.jobs.list_jobs(JobFilter()),
        await rig.events(),
        offer.job,
    ]
    assert "hush-hush" not in repr(shown)


async def test_a_minted_secret_reaches_the_host_and_no_key_is_compared_by_it(rig: Rig) -> None:
    await rig.host()
    spec = JobSpec(
        argv=("true",), supervised=True, idempotency_key="k", secrets={"TOKEN": "hush-hush"}
    )
    for number, seed in (("m1", b"a" * 32), ("m2", b"b" * 32)):
        job = NewJob(id=number, spec=spec, queue="cpu", minted=mint_secrets(spec, seed))
        (submitted,) = await rig.store.jobs.submit_jobs([job], now=rig.now)
        assert submitted.job.id == "m1"  # the same submission, though its seed is another
    await rig.admit()
    (offer,) = (await rig.sync()).offers
    assert offer.secrets == {"TOKEN": "hush-hush", SEED_VARIABLE: "61" * 32}
    shown = [
        submitted,
        await rig.job("m1"),
        await rig.store.jobs.list_jobs(JobFilter()),
        await rig.events(),
        offer.job,
    ]
    assert "61" * 32 not in repr(shown)
    assert SEED_VARIABLE not in repr(shown)
    assert mint_secrets(JobSpec(argv=("true",)), b"a" * 32) == {}


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


async def test_an_offer_is_repeated_until_it_is_reported(rig: Rig) -> None:
    await rig.host()
    job_id = await rig.submit()
    await rig.admit()
    first = (await rig.sync()).offers
    rig.tick(5)
    again = (await rig.sync()).offers
    assert [o.task.key for o in first] == [o.task.key for o in again]
    assert again[0].task.offered_at == START
    assert again[0].task.lease_until == rig.now + timedelta(seconds=300)
    answer = await rig.sync(live=[first[0].task.key])
    assert answer.offers == ()
    assert answer.renewed == ((first[0].task.key, 300.0),)
    assert (await rig.job(job_id)).state is JobState.RESERVED


# ---- fences


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
    beats = [TaskBeat(key=key, step=2**90, total=-(2**90), age_seconds=1e300, section="a\x00b")]
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


async def test_reserve_is_guarded(rig: Rig) -> None:
    await rig.host(slots=1)
    first, second = await rig.submit(), await rig.submit()

    def place(job_id: str, epoch: int = 0, incarnation: str = "inc-00001") -> JobPlacement:
        task = TaskPlacement(rank=0, host_id="h1", incarnation=incarnation, devices=())
        return JobPlacement(job_id=job_id, epoch=epoch, tasks=(task,))

    ttls = {first: 300.0, second: 300.0, "none": 300.0}
    assert await rig.store.admission.reserve([place(first, epoch=5)], ttls, now=rig.now) == []
    assert (
        await rig.store.admission.reserve(
            [place(first, incarnation="inc-00009")], ttls, now=rig.now
        )
        == []
    )
    assert await rig.store.admission.reserve([place("none")], ttls, now=rig.now) == []
    # One slot, two placements: two leaders for a moment must not give it twice.
    assert await rig.store.admission.reserve([place(first), place(second)], ttls, now=rig.now) == [
        first
    ]
    assert await rig.store.admission.reserve([place(second)], ttls, now=rig.now) == []
    assert await rig.store.admission.reserve([place(first)], ttls, now=rig.now) == []
    assert (await rig.job(second)).epoch == 0
    await rig.store.hosts.move_host("h1", "drain", "", now=rig.now)
    await rig.sync()
    await rig.sync(ended=[(await rig.key(first), OK)])
    assert await rig.store.admission.reserve([place(second)], ttls, now=rig.now) == []


async def test_one_device_is_never_given_twice(rig: Rig) -> None:
    await rig.host(gpus=2)
    ids = [await rig.submit(gpus=1) for _ in range(4)]

    def place(job_id: str, *devices: int) -> JobPlacement:
        task = TaskPlacement(rank=0, host_id="h1", incarnation="inc-00001", devices=devices)
        return JobPlacement(job_id=job_id, epoch=0, tasks=(task,))

    ttls = dict.fromkeys(ids, 300.0)
    assert await rig.store.admission.reserve(
        [place(ids[0], 1), place(ids[1], 1)], ttls, now=rig.now
    ) == [ids[0]]
    refused = [place(ids[1], 1), place(ids[1], 7), place(ids[1]), place(ids[1], 0, 1)]
    for placement in refused:
        assert await rig.store.admission.reserve([placement], ttls, now=rig.now) == []
    assert await rig.store.admission.reserve([place(ids[1], 0)], ttls, now=rig.now) == [ids[1]]


async def test_a_new_incarnation_frees_its_tasks_at_once(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.host(new=False)
    assert (
        await rig.job(job_id)
    ).state is JobState.RUNNING  # the same incarnation again: a repeated call
    await rig.host()
    assert (await rig.job(job_id)).state is JobState.DRAINING
    assert (await rig.store.jobs.list_tasks(job_id))[0].facts == TaskFacts(lost="new_incarnation")
    assert await rig.complete() == [job_id]
    job = await rig.job(job_id)
    assert (job.state, job.infra_charged, job.cause) == (JobState.QUEUED, 1, Cause.AGENT_TRANSIENT)
    answer = await rig.sync(live=[key], ended=[])
    assert answer.lost == (key,)
    assert (await rig.sync(ended=[(key, OK)])).refused == (
        key,
    )  # its end is on record as lost, so this is stale
    assert (await rig.kinds()).count("host.lost") == 1


# ---- leases


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
    assert (await rig.sync(ended=[(key, OK)])).refused == (key,)
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.QUEUED
    assert (await rig.sync(live=[key])).lost == (key,)


async def test_a_lapsed_task_that_was_told_to_stop_is_stopped(rig: Rig) -> None:
    await rig.host()
    job_id, _ = await rig.running()
    await rig.store.jobs.cancel_job(job_id, "enough", now=rig.now)
    late = rig.tick(316)
    assert await rig.store.leases.lapse_leases(START - timedelta(days=1), now=late) == [job_id]
    assert (await rig.store.jobs.list_tasks(job_id))[0].state is TaskState.PREEMPTED
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.CANCELLED


# ---- repeats


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


async def test_completing_twice_does_it_once(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.sync(ended=[(key, fails())])
    (snap,) = await rig.store.drains.list_drains(10)
    from holdfast.core.endings.decide import Policy
    from holdfast.core.endings.drain import plan_completion

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


# ---- cancel


async def test_cancel_in_every_state(rig: Rig) -> None:
    await rig.host(slots=8)
    waiting = await rig.submit(start_at=(START + timedelta(hours=1)).timestamp())
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


async def test_success_beats_a_drain_that_came_too_late(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.store.jobs.cancel_job(job_id, "stop", now=rig.now)
    assert (await rig.sync(ended=[(key, OK)])).draining == (job_id,)
    await rig.complete()
    assert (await rig.job(job_id)).state is JobState.SUCCEEDED


# ---- order, placement, queues


async def test_order_and_the_front_of_the_queue(rig: Rig) -> None:
    await rig.host(slots=1)
    first, key = await rig.running()
    others = [await rig.submit() for _ in range(3)]
    urgent = await rig.submit(priority=90)
    assert await rig.places(urgent, *others) == [0, 1, 2, 3]
    await rig.sync(
        ended=[
            (
                key,
                TaskFacts(
                    lost=None,
                    trip=Trip(
                        watchdog=Watchdog.STALL,
                        exit_code=76,
                        reason="silent",
                        evidence={"age": 120.5},
                    ),
                ),
            )
        ]
    )
    await rig.complete()
    job = await rig.job(first)
    assert (job.state, job.watchdog_charged, job.avoid_hosts) == (JobState.QUEUED, 1, ("h1",))
    snap = await rig.store.admission.read_admission(10, now=rig.now)
    assert [c.job_id for c in snap.candidates] == [urgent, first, *others]
    assert snap.candidates[1].avoid_hosts == ("h1",)
    (tripped,) = [e for e in await rig.events(first) if e.kind == "task.tripped"]
    assert (tripped.data["watchdog"], tripped.data["exit_code"], tripped.data["evidence"]) == (
        "stall",
        76,
        {"age": 120.5},
    )
    assert tripped.host_id == "h1"
    limited = await rig.store.admission.read_admission(2, now=rig.now)
    assert [c.job_id for c in limited.candidates] == [urgent, first]


async def test_only_lanes_with_hosts_headroom_and_no_pause_are_read(rig: Rig) -> None:
    await rig.host(queues=["cpu", "gpu"])
    await rig.store.settings.put_queue("gpu", {"max_running": 1}, now=rig.now)
    in_gpu = [await rig.submit(queue="gpu") for _ in range(3)]
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
    forced = JobPlacement(job_id=in_gpu[1], epoch=0, tasks=(task,))
    assert await rig.store.admission.reserve([forced], {in_gpu[1]: 300.0}, now=rig.now) == []
    await rig.store.settings.resume_queue("gpu", now=rig.now)
    assert await seen() == in_gpu[1:]
    assert (await rig.job(in_video)).state is JobState.QUEUED
    assert [k for k in await rig.kinds() if k.startswith("queue.")] == [
        "queue.changed",
        "queue.changed",
        "queue.paused",
        "queue.resumed",
    ]


async def test_a_hard_pause_stops_what_runs_at_no_charge(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    told = await rig.submit()
    await rig.admit()
    assert sorted(
        await rig.store.settings.pause_queue("cpu", "broken data", hard=True, now=rig.now)
    ) == sorted([job_id, told])
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.operator_stop, order.cause, order.hard) == (True, Cause.PREEMPTED, False)
    assert (await rig.store.jobs.list_tasks(told))[
        0
    ].state is TaskState.PREEMPTED  # nobody had been told
    trip = Trip(watchdog=Watchdog.OPERATOR_STOP, exit_code=79, reason="switched off")
    await rig.sync(ended=[(key, TaskFacts(signal=15, stopped=True, trip=trip))])
    await rig.complete()
    for found in (job_id, told):
        job = await rig.job(found)
        assert (job.state, job.retries_charged, job.infra_charged, job.watchdog_charged) == (
            JobState.QUEUED,
            0,
            0,
            0,
        )
    assert (await rig.store.jobs.list_attempts(job_id))[0].exit_code == 79


async def test_a_silent_host_is_given_nothing(rig: Rig) -> None:
    await rig.host()
    await rig.submit()
    rig.tick(31)
    assert (await rig.store.admission.read_admission(10, now=rig.now)).hosts == ()
    await rig.sync()
    assert len((await rig.store.admission.read_admission(10, now=rig.now)).hosts) == 1


async def test_capacity_counts_devices_slots_and_memory_of_live_leases(rig: Rig) -> None:
    await rig.host(slots=4, gpus=4)
    job_id, key = await rig.running(gpus=2, cpus=3, memory_bytes=1 << 30)
    await rig.submit(gpus=4)  # capacity is only read where somebody waits for it
    (room,) = (await rig.store.admission.read_admission(10, now=rig.now)).hosts
    assert (room.free_cpu_slots, room.free_memory_bytes, room.free_devices) == (
        1,
        (1 << 34) - (1 << 30),
        (2, 3),
    )
    host = await rig.store.hosts.get_host("name-h1")
    assert (host.busy_cpu_slots, host.busy_gpus, host.running) == (3, (0, 1), 1)
    gauges = await rig.store.read_gauges(now=rig.now)
    assert (gauges.busy_cpu_slots, gauges.busy_gpus, gauges.total_cpu_slots, gauges.total_gpus) == (
        3,
        2,
        4,
        4,
    )
    await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    assert (
        await rig.store.read_gauges(now=rig.now)
    ).busy_gpus == 2  # occupied until the end is confirmed
    (room,) = (await rig.store.admission.read_admission(10, now=rig.now)).hosts
    assert (room.free_cpu_slots, room.free_devices) == (1, (2, 3))
    await rig.sync(ended=[(key, STOPPED)])
    assert (await rig.store.read_gauges(now=rig.now)).busy_gpus == 0


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


# ---- gangs


async def test_a_gang_is_reserved_whole_or_not_at_all(rig: Rig) -> None:
    await rig.host("h1", slots=2)
    gang = await rig.submit(tasks=3)
    assert await rig.admit() == []
    part = JobPlacement(
        job_id=gang,
        epoch=0,
        tasks=tuple(
            TaskPlacement(rank=r, host_id="h1", incarnation="inc-00001", devices=())
            for r in range(3)
        ),
    )
    assert await rig.store.admission.reserve([part], {gang: 300.0}, now=rig.now) == []
    assert await rig.store.jobs.list_tasks(gang) == []
    await rig.host("h2", slots=2)
    assert await rig.admit() == [gang]
    assert len(await rig.store.jobs.list_tasks(gang)) == 3


async def claim_gang(rig: Rig, keys: list[TaskKey], where: dict[int, str]) -> None:
    """GANG-1: nothing is offered for its start before every rank has its place."""
    names = sorted(set(where.values()))
    for name in names:
        mine = [k for k in keys if where[k.rank] == name]
        answer = await rig.sync(name)
        assert (answer.offers, [c.key for c in answer.claims]) == ((), mine)
        again = await rig.sync(name)
        assert [c.key for c in again.claims] == mine, "a claim is asked for until it is reported"
    for name in names:
        kept = [(k, 29_500 if k.rank == 0 else 0) for k in keys if where[k.rank] == name]
        answer = await rig.sync(name, claimed=kept)
        last = name == names[-1]
        assert answer.claims == ()
        assert [o.task.key for o in answer.offers] == ([k for k, _ in kept] if last else [])
        assert set(answer.opened) == (set(names) if last else set())
        assert [k for k, _ in answer.renewed] == [k for k, _ in kept]


async def start_gang(rig: Rig, size: int = 3) -> tuple[str, list[TaskKey], dict[int, str]]:
    for name in ("h1", "h2"):
        await rig.host(name, slots=2)
    gang = await rig.submit(tasks=size)
    assert await rig.admit() == [gang]
    tasks = await rig.store.jobs.list_tasks(gang)
    keys, where = [t.key for t in tasks], {t.rank: t.host_id or "" for t in tasks}
    await claim_gang(rig, keys, where)
    for i, name in enumerate(("h1", "h2")):
        mine = [k for k in keys if where[k.rank] == name]
        answer = await rig.sync(name, claimed=[(k, 0) for k in mine])
        assert [o.task.key for o in answer.offers] == mine
        assert [s.rank for s in answer.offers[0].seats] == list(range(size))
        await rig.sync(name, live=mine, started=mine)
        assert (await rig.job(gang)).state is (JobState.RESERVED if i == 0 else JobState.RUNNING)
    return gang, keys, where


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
    # One was asked to keep a place, the other told nothing: nothing of either can run, and nobody
    # has to confirm it.
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


# ---- hosts


async def test_moving_hosts(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    assert (
        await rig.store.hosts.move_host("h1", "drain", "disk swap", now=rig.now)
    ).state is HostState.DRAINING
    with pytest.raises(Conflict, match="undrain"):
        await rig.store.hosts.move_host("h1", "release", "", now=rig.now)
    with pytest.raises(Conflict):
        await rig.store.hosts.move_host("h1", "register", "", now=rig.now)
    assert (await rig.job(job_id)).state is JobState.RUNNING
    await rig.store.hosts.move_host("h1", "undrain", "", now=rig.now)
    await rig.store.hosts.move_host("h1", "drain", "disk swap", hard=True, now=rig.now)
    (order,) = (await rig.sync(live=[key])).preempts
    assert (order.cause, order.operator_stop) == (Cause.HOST_DRAINED, True)
    await rig.store.hosts.move_host("h1", "quarantine", "smoke", now=rig.now)
    assert (
        await rig.store.hosts.move_host("h1", "terminate", "burnt", now=rig.now)
    ).state is HostState.TERMINATED
    assert (await rig.store.jobs.list_tasks(job_id))[0].state is TaskState.PREEMPTED
    assert (await rig.sync(live=[key])).status == "stale"
    assert await rig.store.hosts.list_hosts() == []
    assert len(await rig.store.hosts.list_hosts(include_terminated=True)) == 1
    await rig.host()
    assert (await rig.store.hosts.get_host("h1")).state is HostState.ACTIVE
    with pytest.raises(NotFound):
        await rig.store.hosts.move_host("h9", "drain", "", now=rig.now)
    moved = [e.data["event"] for e in await rig.events() if e.kind == "host.moved"]
    assert moved == ["drain", "undrain", "drain", "quarantine", "terminate"]


async def test_a_leaving_host_is_terminated_after_its_ends(rig: Rig) -> None:
    await rig.host(slots=3)
    done, key = await rig.running()
    left, _ = await rig.running()
    told = TaskFacts(signal=15, stopped=True, stop_cause=Cause.HOST_DRAINED)
    third, third_key = await rig.running()
    for _ in range(2):  # the answer may be lost and the call repeated
        answer = await rig.sync(ended=[(key, OK), (third_key, told)], leaving=True)
        assert answer.status == "ok"
        assert set(answer.acked) == {key, third_key}
    assert (await rig.store.hosts.get_host("h1")).state is HostState.TERMINATED
    assert (await rig.job(done)).state is JobState.SUCCEEDED
    await rig.complete()
    assert (await rig.job(left)).cause is Cause.AGENT_TRANSIENT
    job = await rig.job(third)
    assert (job.state, job.cause, job.infra_charged) == (JobState.QUEUED, Cause.HOST_DRAINED, 0)


async def test_a_dead_host_is_flagged_once_and_cleared(rig: Rig) -> None:
    await rig.host("h1")
    await rig.running()
    await rig.host("h2")  # idle: its silence is nobody's loss
    long_ago = START - timedelta(days=1)
    assert await rig.store.hosts.sweep_dead_hosts(30, long_ago, now=rig.tick(30)) == []
    rig.tick(1)
    assert (
        await rig.store.hosts.sweep_dead_hosts(30, rig.now - timedelta(seconds=30), now=rig.now)
        == []
    )
    (flagged,) = await rig.store.hosts.sweep_dead_hosts(30, long_ago, now=rig.now)
    assert (flagged.id, flagged.flagged_dead_at) == ("h1", rig.now)
    assert await rig.store.hosts.sweep_dead_hosts(30, long_ago, now=rig.tick(1)) == []
    assert [h.id for h in await rig.store.hosts.list_hosts(dead=True)] == ["h1"]
    assert (await rig.store.read_gauges(now=rig.now)).dead_hosts == 1
    await rig.sync("h1")
    assert (await rig.store.hosts.get_host("h1")).flagged_dead_at is None
    assert [k for k in await rig.kinds() if k in ("host.dead", "host.recovered")] == [
        "host.dead",
        "host.recovered",
    ]


async def test_hosts_are_found(rig: Rig) -> None:
    with pytest.raises(NotFound):
        await rig.store.hosts.register_host(
            "h1", None, "inc-00001", HostFacts(name="a"), now=rig.now
        )
    await rig.host("h1", gpus=2)
    found = await rig.store.hosts.find_host_by_key(b"h1".ljust(32, b"."))
    assert found is not None
    assert found.id == "h1"
    assert await rig.store.hosts.find_host_by_key(HASH) is None
    with pytest.raises(NotFound):
        await rig.store.hosts.get_host("nobody")
    (size,) = await rig.store.hosts.host_sizes()
    assert (size.name, len(size.gpus), size.cpu_slots) == ("name-h1", 2, 8)
    job_id, key = await rig.running()
    (live,) = await rig.store.leases.list_live_tasks("h1")
    assert (live.key, live.queue) == (key, "cpu")
    assert [j.id for j in await rig.store.jobs.list_jobs(JobFilter(host_id="h1"))] == [job_id]


async def test_a_gpu_fault_quarantines_the_host(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await rig.sync(ended=[(key, TaskFacts(exit_code=1, gpu_lost="fell off the bus"))])
    await rig.complete()
    assert (await rig.job(job_id)).avoid_hosts == ("h1",)
    assert (await rig.store.hosts.get_host("h1")).state is HostState.QUARANTINED
    assert (await rig.events())[-1].kind == "host.moved"


# ---- submissions


async def test_idempotency(rig: Rig) -> None:
    spec = JobSpec(argv=("a",), idempotency_key="k", secrets={"S": "1"})
    (first,) = await rig.store.jobs.submit_jobs(
        [NewJob(id="a1", spec=spec, queue="cpu")], now=rig.now
    )
    (again,) = await rig.store.jobs.submit_jobs(
        [NewJob(id="a2", spec=spec, queue="cpu")], now=rig.now
    )
    assert (first.created, again.created, again.job.id) == (True, False, "a1")
    (repeat,) = await rig.store.jobs.submit_jobs(
        [NewJob(id="a1", spec=spec, queue="cpu")], now=rig.now
    )
    assert repeat.job.id == "a1"
    other = JobSpec(argv=("a",), idempotency_key="k", secrets={"S": "2"})
    with pytest.raises(Conflict) as caught:
        await rig.store.jobs.submit_jobs(
            [
                NewJob(id="a3", spec=JobSpec(argv=("b",)), queue="cpu"),
                NewJob(id="a4", spec=other, queue="cpu"),
            ],
            now=rig.now,
        )
    assert caught.value.code == "idempotency_mismatch"
    with pytest.raises(NotFound):
        await rig.store.jobs.get_job("a3")  # all or none
    mine = JobSpec(argv=("a",), idempotency_key="k", project="other")
    (elsewhere,) = await rig.store.jobs.submit_jobs(
        [NewJob(id="a5", spec=mine, queue="cpu")], now=rig.now
    )
    assert elsewhere.created
    batch = [
        NewJob(id=f"b{i}", spec=JobSpec(argv=("x",), idempotency_key="twice"), queue="cpu")
        for i in range(2)
    ]
    assert [
        (s.job.id, s.created) for s in await rig.store.jobs.submit_jobs(batch, now=rig.now)
    ] == [("b0", True), ("b0", False)]
    assert (await rig.kinds()).count("job.submitted") == 3


async def test_one_key_raced_makes_one_job(rig: Rig) -> None:
    spec = JobSpec(argv=("a",), idempotency_key="race")
    calls = [
        rig.store.jobs.submit_jobs([NewJob(id=f"r{i}", spec=spec, queue="cpu")], now=rig.now)
        for i in range(6)
    ]
    results = [found[0] for found in await asyncio.gather(*calls)]
    assert sum(r.created for r in results) == 1
    assert len({r.job.id for r in results}) == 1


async def test_an_unknown_queue_is_refused(rig: Rig) -> None:
    with pytest.raises(ValidationError) as caught:
        await rig.submit(queue="nowhere")
    assert caught.value.code == "unknown_queue"
    assert await rig.store.jobs.list_jobs(JobFilter()) == []


async def test_jobs_are_listed_newest_first_and_filtered(rig: Rig) -> None:
    ids = [
        await rig.submit(name=f"n{i % 2}", labels={"i": str(i)}, project="p" if i else "q")
        for i in range(5)
    ]
    list_jobs = rig.store.jobs.list_jobs
    assert [j.id for j in await list_jobs(JobFilter())] == ids[::-1]
    page = await list_jobs(JobFilter(limit=2))
    rest = await list_jobs(JobFilter(before=page[-1].id))
    assert [j.id for j in page + rest] == ids[::-1]
    assert [j.id for j in await list_jobs(JobFilter(labels={"i": "3"}))] == [ids[3]]
    assert [j.id for j in await list_jobs(JobFilter(name="n1"))] == [ids[3], ids[1]]
    assert [j.id for j in await list_jobs(JobFilter(project="q"))] == [ids[0]]
    await rig.store.jobs.cancel_job(ids[2], "", now=rig.now)
    assert [j.id for j in await list_jobs(JobFilter(states=("cancelled",)))] == [ids[2]]
    assert [j.id for j in await list_jobs(JobFilter(cause="user_cancelled"))] == [ids[2]]
    assert await rig.store.jobs.count_jobs() == {("cpu", "queued"): 4}
    assert await list_jobs(JobFilter(queue="gpu")) == []
    with pytest.raises(NotFound):
        await rig.store.jobs.list_attempts("nothing")


# ---- settings


async def test_settings_and_queues(rig: Rig) -> None:
    before = await rig.store.settings.read_settings()
    assert before.cluster == {}
    assert before.queues["gpu"] == {"time_limit_seconds": 8100.0}
    after = await rig.store.settings.write_cluster_settings(
        {"grace_seconds": "20s", "watchdog_cap": 5}, now=rig.now
    )
    assert after > before.revision
    assert (
        await rig.store.settings.write_cluster_settings({"watchdog_cap": 5}, now=rig.now) == after
    )  # nothing new
    assert (await rig.store.settings.read_settings()).cluster == {
        "grace_seconds": 20.0,
        "watchdog_cap": 5,
    }
    await rig.store.settings.write_cluster_settings({}, ["watchdog_cap"], now=rig.now)
    assert (await rig.store.settings.read_settings()).cluster == {"grace_seconds": 20.0}
    with pytest.raises(ValidationError):
        await rig.store.settings.write_cluster_settings({"no_such": 1}, now=rig.now)
    with pytest.raises(ValidationError):
        await rig.store.settings.put_queue("gpu", {"history_days": 1}, now=rig.now)
    queue = await rig.store.settings.put_queue("mine", {"time_limit_seconds": None}, now=rig.now)
    assert (queue.settings, queue.queued) == ({"time_limit_seconds": None}, 0)
    job_id = await rig.submit(queue="mine")
    assert (await rig.store.settings.get_queue("mine")).queued == 1
    with pytest.raises(Conflict):
        await rig.store.settings.delete_queue("mine", now=rig.now)
    await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    await rig.store.settings.delete_queue("mine", now=rig.now)
    for call in (
        rig.store.settings.get_queue("mine"),
        rig.store.settings.delete_queue("mine"),
        rig.store.settings.resume_queue("mine"),
    ):
        with pytest.raises(NotFound):
            await call
    with pytest.raises(ValidationError):
        await rig.store.jobs.revive_job(job_id, "", now=rig.now)  # its lane is gone


# ---- events


async def test_events_page_resume_and_tail(rig: Rig) -> None:
    ids = [await rig.submit() for _ in range(7)]
    everything = await rig.store.events.read_events(None)
    assert [e.job_id for e in everything] == ids
    assert [e.id for e in everything] == sorted(e.id for e in everything)
    assert await rig.events() == everything
    assert await rig.store.events.read_events(None, tail=3) == everything[-3:]
    assert await rig.store.events.read_events(everything[2].id, limit=2) == everything[3:5]
    assert await rig.store.events.read_events(None, job_id=ids[4]) == [everything[4]]
    assert await rig.store.events.read_events(None, kinds=["job.cancelled"]) == []
    assert await rig.store.events.read_events(everything[-1].id) == []
    for rotten in ("what", "1", "zz-1", "-1-2", "f" * 40 + "-1"):
        with pytest.raises(ValidationError):
            await rig.store.events.read_events(rotten)


# ---- logs


async def test_log_appends_in_any_order_are_idempotent(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    text = bytes(range(256)) * 40

    async def put(start: int, end: int, *, ended: bool = False) -> int | None:
        return await rig.append_log("h1", key, "stdout", start, text[start:end], ended, 1 << 20)

    assert await put(0, 100) == 100
    assert await put(0, 100) == 100
    assert await put(50, 150) == 150
    assert await put(300, 400) == 400
    chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 0)
    assert [(c.offset, len(c.data)) for c in chunks] == [(0, 100), (100, 50), (300, 100)]
    assert await put(120, 350) == 400
    assert await put(400, 400, ended=True) == 400
    chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 7)
    assert chunks[0].offset == 7
    assert b"".join(c.data for c in chunks) == text[7:400]
    short = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 7, limit_bytes=20)
    assert b"".join(c.data for c in short) == text[7:27]
    (stream,) = await rig.store.logs.list_log_streams(job_id)
    assert (stream.size, stream.kept, stream.ended) == (400, 400, True)
    assert await rig.store.logs.list_log_streams(job_id, 2) == []
    assert await rig.store.logs.read_log(job_id, 1, 0, "stderr", 0) == []


async def test_logs_keep_head_and_tail(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    keep, piece = 80_000, 7_000
    text = b"".join(b"%07d" % i for i in range(100_000))
    for at in range(0, len(text), piece):
        size = await rig.append_log("h1", key, "stdout", at, text[at : at + piece], False, keep)
        assert size == min(at + piece, len(text))
    (stream,) = await rig.store.logs.list_log_streams(job_id)
    assert stream.size == len(text)
    assert keep <= stream.kept <= keep + 2 * piece
    chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 0)
    assert all(c.data == text[c.offset : c.offset + len(c.data)] for c in chunks)
    assert sum(len(c.data) for c in chunks) == stream.kept
    gaps = [b.offset - a.offset - len(a.data) for a, b in itertools.pairwise(chunks)]
    assert [g for g in gaps if g] == [len(text) - stream.kept]
    assert chunks[0].offset == 0
    assert chunks[-1].offset + len(chunks[-1].data) == len(text)
    # A late chunk of what was dropped stays dropped.
    middle = len(text) // 2
    await rig.append_log("h1", key, "stdout", middle, text[middle : middle + 100], False, keep)
    assert (await rig.store.logs.list_log_streams(job_id))[0].kept == stream.kept


async def test_appends_together_are_as_appends_one_by_one(rig: Rig) -> None:
    await rig.host("h1", slots=2)
    job_id, key = await rig.running()
    other_id, other = await rig.running()

    def put(key: TaskKey, stream: str, offset: int, data: bytes, ended: bool = False) -> LogAppend:
        return LogAppend(
            key=key, stream=stream, offset=offset, data=data, ended=ended, keep_bytes=1 << 20
        )

    wrong = TaskKey(job_id, 0, 9)
    appends = [
        put(key, "stdout", 0, b"one two "), put(wrong, "stdout", 0, b"x"), put(other, "stdout", 0, b"theirs", True),
        put(key, "stdout", 8, b"three"), put(key, "stdout", 4, b"two three four"), put(key, "stderr", 0, b"", True),
        put(TaskKey("x\x00", 0, 1), "stdout", 0, b"x"), put(key, "stdout", 18, b"", True),
    ]  # fmt: skip
    for sizes in ([8, None, 6, 13, 18, 0, None, 18], [18, None, 6, 18, 18, 0, None, 18]):
        assert await rig.store.logs.append_logs("h1", appends) == sizes
        chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 0)
        assert b"".join(c.data for c in chunks) == b"one two three four"
        found = {
            (s.job_id, s.stream): (s.size, s.kept, s.ended)
            for s in [
                *await rig.store.logs.list_log_streams(job_id),
                *await rig.store.logs.list_log_streams(other_id),
            ]
        }
        assert found == {
            (job_id, "stdout"): (18, 18, True),
            (job_id, "stderr"): (0, 0, True),
            (other_id, "stdout"): (6, 6, True),
        }
    assert await rig.store.logs.append_logs("h1", []) == []
    assert await rig.store.logs.append_logs("h2", appends[:1]) == [None]


async def test_bytes_from_a_stranger_are_stale(rig: Rig) -> None:
    await rig.host("h1", slots=1)
    job_id, key = await rig.running()
    await rig.host("h2")
    strange = [
        ("h2", key),
        ("h1", TaskKey(job_id, 0, 9)),
        ("h1", TaskKey(job_id, 1, 1)),
        ("h1", TaskKey("x\x00", 0, 1)),
    ]
    for host, wrong in strange:
        assert await rig.append_log(host, wrong, "stdout", 0, b"x", False, 1000) is None
        with pytest.raises(Stale):
            await rig.store.logs.put_forensics(
                host, Forensics(key=wrong, reason="r", seconds=1.0, sections={}), now=rig.now
            )
    await rig.sync(ended=[(key, OK)])
    assert await rig.append_log("h1", key, "stdout", 0, b"late", True, 1000) == 4


async def test_forensics(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    found = Forensics(key=key, reason="stalled", seconds=1.25, sections={"stacks": "main\n  wait"})
    for _ in range(2):
        await rig.store.logs.put_forensics("h1", found, now=rig.now)
    assert await rig.store.logs.get_forensics(job_id) == [(1, found)]
    assert await rig.store.logs.get_forensics(job_id, 2) == []
    assert (await rig.store.jobs.list_attempts(job_id))[0].has_forensics
    await rig.store.logs.put_forensics(
        "h1", Forensics(key=key, reason="a\x00", seconds=1.0, sections={"t": "b\x00c"}), now=rig.now
    )


# ---- tokens


async def test_tokens(rig: Rig) -> None:
    made = await rig.store.tokens.create_token("t1", "submit", "ci", HASH, None, now=rig.now)
    assert (
        await rig.store.tokens.create_token("t1", "submit", "ci", HASH, None, now=rig.tick(1))
        == made
    )
    assert await rig.store.tokens.find_token(HASH, now=rig.now) == made
    assert await rig.store.tokens.use_join_token(HASH, now=rig.now) is None
    assert await rig.store.tokens.find_token(HASH[::-1], now=rig.now) is None
    await rig.store.tokens.revoke_token("t1", now=rig.now)
    await rig.store.tokens.revoke_token("t1", now=rig.tick(1))
    assert await rig.store.tokens.find_token(HASH, now=rig.now) is None
    (listed,) = await rig.store.tokens.list_tokens()
    assert listed.revoked_at == START + timedelta(seconds=1)
    with pytest.raises(NotFound):
        await rig.store.tokens.revoke_token("t9")
    until = rig.now + timedelta(seconds=10)
    await rig.store.tokens.create_token("t2", "read", "", HASH[::-1], until, now=rig.now)
    assert (
        await rig.store.tokens.find_token(HASH[::-1], now=until - timedelta(seconds=1)) is not None
    )
    assert await rig.store.tokens.find_token(HASH[::-1], now=until) is None


async def test_a_join_token_is_spent_once_under_a_race(rig: Rig) -> None:
    await rig.store.tokens.create_token("t1", "join", "", HASH, None, now=rig.now)
    used = await asyncio.gather(
        *(rig.store.tokens.use_join_token(HASH, now=rig.now) for _ in range(8))
    )
    assert sum(token is not None for token in used) == 1
    assert await rig.store.tokens.use_join_token(HASH, now=rig.now) is None


# ---- housekeeping


async def test_prune_takes_old_ended_jobs_with_everything(rig: Rig) -> None:
    await rig.host()
    old, key = await rig.running(idempotency_key="k", secrets={"A": "b"})
    await rig.append_log("h1", key, "stdout", 0, b"bytes", True, 1000)
    await rig.store.logs.put_forensics(
        "h1", Forensics(key=key, reason="r", seconds=1.0, sections={}), now=rig.now
    )
    await rig.sync(ended=[(key, OK)])
    unfinished = await rig.submit()
    rig.tick(86_400)
    young = await rig.submit()
    await rig.store.jobs.cancel_job(young, "", now=rig.now)
    assert await rig.store.jobs.prune(1.5, now=rig.now) == 0
    assert await rig.store.jobs.prune(0.5, now=rig.now) == 1
    with pytest.raises(NotFound):
        await rig.job(old)
    assert await rig.events(old) == []
    assert await rig.store.logs.read_log(old, 1, 0, "stdout", 0) == []
    assert await rig.store.logs.get_forensics(old) == []
    assert {j.id for j in await rig.store.jobs.list_jobs(JobFilter())} == {unfinished, young}
    assert await rig.submit(idempotency_key="k")
    assert "host.registered" not in await rig.kinds()  # as old as the job


async def test_gauges(rig: Rig) -> None:
    await rig.host()
    await rig.running()
    await rig.submit(gpus=1)
    gauges = await rig.store.read_gauges(now=rig.tick(7))
    assert gauges.jobs == {("cpu", "running"): 1, ("cpu", "queued"): 1}
    assert (gauges.hosts, gauges.dead_hosts, gauges.oldest_queued_seconds) == (
        {"active": 1},
        0,
        7.0,
    )


async def test_hints_reach_their_listener_once(rig: Rig) -> None:
    hints = rig.store.leadership.hints()
    waiting = asyncio.ensure_future(anext(hints))
    await asyncio.sleep(0)
    for _ in range(5):
        rig.store.leadership.hint("admit")
    rig.store.leadership.hint("drain")
    assert await asyncio.wait_for(waiting, 5) == "admit"
    assert await asyncio.wait_for(anext(hints), 5) == "drain"


async def test_one_leads(rig: Rig) -> None:
    assert await rig.store.leadership.try_lead() is True
    assert await rig.store.leadership.try_lead() is True
    await rig.store.leadership.stop_leading()
    assert await rig.store.leadership.try_lead() is True
