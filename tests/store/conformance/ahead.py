"""What every store must do with jobs that a host holds beyond its slots (AHEAD-1…3)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import SPARE
from holdfast.core.states import AttemptState, JobState, Outcome, TaskState
from tests.store.rig import OK, Rig

AHEAD = 2


async def hold(rig: Rig, slots: int = 1, count: int = AHEAD) -> tuple[TaskKey, list[TaskKey]]:
    """A host whose slots run one job and which holds `count` more, from a queue deeper than what
    is read of it. Returns the job that runs and those that are held."""
    await rig.host(slots=slots)
    running = [(await rig.running(cpus=1))[1] for _ in range(slots)]
    for _ in range(count + SPARE + 6):
        await rig.submit()
    answer = await rig.sync(live=running[1:], ended=[(running[0], OK)], takes=True, ahead=count)
    keys = [offer.task.key for offer in answer.offers]
    assert [o.task.ahead for o in answer.offers] == [False] + [True] * count
    await rig.sync(live=keys, started=keys[:1])
    return keys[0], keys[1:]


async def test_a_host_holds_jobs_beyond_its_slots(rig: Rig) -> None:
    first, held = await hold(rig)
    job = await rig.job(held[0].job_id)
    assert (job.state, job.reason) == (
        JobState.RESERVED,
        "held ahead on name-h1, begins when a slot is free",
    )
    (task,) = await rig.store.jobs.list_tasks(job.id)
    assert (task.ahead, task.held_ahead, task.state) == (True, True, TaskState.RESERVED)
    assert (await rig.store.jobs.list_attempts(job.id))[0].road == "host"
    begun = await rig.sync(
        live=held, started=held[:1], ended=[(first, OK)], takes=True, ahead=AHEAD, held=1
    )
    assert [o.task.ahead for o in begun.offers] == [True], "one began, so one more is held"
    assert (await rig.job(job.id)).state is JobState.RUNNING
    ended = await rig.sync(live=held[1:], ended=[(held[0], OK)])
    assert (ended.succeeded, (await rig.job(job.id)).state) == ((job.id,), JobState.SUCCEEDED)


async def test_the_leader_finds_no_room_where_jobs_are_held_and_none_too_little(rig: Rig) -> None:
    first, held = await hold(rig)
    snapshot = await rig.store.admission.read_admission(50, now=rig.now)
    assert [h.free_cpu_slots for h in snapshot.hosts] == [0]
    running = await rig.store.admission.read_running(now=rig.now)
    assert [task.job_id for task in running] == [first.job_id], "only what has a slot"
    assert await rig.admit() == []
    await rig.sync(live=held, started=[held[0]], ended=[(first, OK)])
    assert await rig.admit() == [], "the slot is that of a job held ahead"
    await rig.sync(live=held[1:], started=held[1:], ended=[(held[0], OK)])
    assert await rig.admit() == []
    await rig.sync(ended=[(held[1], OK)])
    assert len(await rig.admit()) == 1


async def test_what_is_held_is_not_counted_among_the_busy_slots(rig: Rig) -> None:
    """A host of two slots is never shown as 4/2."""
    await hold(rig, slots=2)
    host = await rig.store.hosts.get_host("h1")
    assert (host.busy_cpu_slots, host.cpu_slots, host.running) == (2, 2, 4)
    assert (await rig.store.read_gauges(now=rig.now)).busy_cpu_slots == 2


async def test_no_more_are_held_than_the_host_asks_for(rig: Rig) -> None:
    """Offers that were lost count: they are leases, whatever the host says that it holds."""
    first, held = await hold(rig)
    again = await rig.sync(ended=[(first, OK)], takes=True, ahead=AHEAD)
    assert {o.task.key for o in again.offers} >= set(held), "offered again"
    assert len(again.offers) == AHEAD + 1


@pytest.mark.parametrize(
    ("why", "spec"),
    [
        ("end of the queue", {}),
        ("queue is not meant", {}),
        ("two slots", {"cpus": 2}),
        ("executor", {"executor": "family"}),
        ("interactive", {"interactive": True}),
        ("image", {"image": "alpine"}),
        ("passed over", {}),
    ],
)
async def test_only_small_plain_jobs_of_a_deep_queue_are_held(
    rig: Rig, why: str, spec: dict[str, Any]
) -> None:
    await rig.host(slots=2)
    keys = [(await rig.running(cpus=1))[1] for _ in range(2)]
    if why == "passed over":
        gang = await rig.submit(tasks=2, priority=99)
        await rig.store.admission.note_passed([gang], holds=False, now=rig.now)
    await rig.submit()
    for _ in range(2 if why == "end of the queue" else SPARE + AHEAD + 2):
        await rig.submit(**spec)
    terms = await rig.terms()
    if why == "queue is not meant":
        terms = msgspec.structs.replace(terms, ahead=frozenset())
    given: dict[str, Any] = {"takes": True, "ahead": AHEAD}
    sync = rig.make_sync("h1", live=(keys[0],), ended=((keys[1], OK),), **given)
    (answer,) = await rig.store.leases.sync_hosts([sync], terms=terms, now=rig.now)
    assert [o.task.ahead for o in answer.offers] == [False]


async def test_a_job_given_back_is_queued_in_its_old_place_at_no_charge(rig: Rig) -> None:
    """AHEAD-2."""
    first, held = await hold(rig)
    answer = await rig.sync(live=[first, held[1]], returned=[held[0]])
    assert (answer.acked, answer.returned, answer.lost) == ((held[0],), (held[0].job_id,), ())
    job = await rig.job(held[0].job_id)
    assert (job.state, job.attempts, job.infra_charged, job.retries_charged) == (
        JobState.QUEUED,
        1,
        0,
        0,
    )
    assert job.reason == "host name-h1 gave it back before it began; queued in its old place"
    (attempt,) = await rig.store.jobs.list_attempts(job.id)
    assert (attempt.state, attempt.outcome) == (AttemptState.ENDED, Outcome.EXPIRED)
    assert (await rig.kinds(job.id))[-1] == "job.expired"
    assert await rig.store.jobs.list_tasks(job.id) == []
    again = await rig.sync(live=[first, held[1]], returned=[held[0]])
    assert (again.refused, again.returned) == ((held[0],), ()), "so that its host forgets it"
    late = await rig.sync(live=[first, held[1]], started=[held[0]])
    assert late.lost == (held[0],), "FENCE-1: it may not begin under the old epoch"
    next_up = await rig.sync(live=[held[1]], ended=[(first, OK)], takes=True, ahead=AHEAD, held=1)
    offered = [o.task.key for o in next_up.offers]
    assert job.id not in [t.job_id for t in offered], "never held ahead again (AHEAD-1)"
    done = await rig.sync(ended=[(held[1], OK)], takes=True, ahead=AHEAD)
    assert [(o.task.key.job_id, o.task.ahead) for o in done.offers][:1] == [(job.id, False)]


@pytest.mark.parametrize("how", ["queue", "priority", "drain", "quarantine"])
async def test_held_jobs_are_recalled_until_they_are_given_back_or_begin(
    rig: Rig, how: str
) -> None:
    """AHEAD-2: one that began meanwhile wins, and goes on."""
    first, held = await hold(rig)
    live = [first, *held]
    admission = rig.store.admission
    assert await admission.recall_ahead(queue="gpu") == []
    assert await admission.recall_ahead(below=0) == []
    assert (await rig.sync(live=live)).recalls == ()
    if how == "queue":
        assert await admission.recall_ahead(queue="cpu") == ["h1"]
        assert await admission.recall_ahead(queue="cpu") == [], "asked once"
    elif how == "priority":
        assert await admission.recall_ahead(below=51) == ["h1"]
    else:
        await rig.store.hosts.move_host("h1", how, "why", now=rig.now)
    for _ in range(2):
        answer = await rig.sync(live=live)
        assert answer.recalls == tuple(sorted(held)), "said again until it is done"
    begun, given = held
    answer = await rig.sync(live=[begun], started=[begun], ended=[(first, OK)], returned=[given])
    assert (answer.recalls, answer.returned, answer.lost) == ((), (given.job_id,), ())
    assert [(await rig.job(k.job_id)).state for k in held] == [JobState.RUNNING, JobState.QUEUED]
    assert (await rig.sync(live=[begun], started=[begun])).recalls == ()


async def test_a_cancel_of_a_held_job_is_confirmed_by_giving_it_back(rig: Rig) -> None:
    first, held = await hold(rig)
    await rig.store.jobs.cancel_job(held[0].job_id, "", now=rig.now)
    answer = await rig.sync(live=[first, *held])
    assert [p.key for p in answer.preempts] == [held[0]]
    answer = await rig.sync(live=[first, held[1]], returned=[held[0]])
    assert (answer.acked, answer.returned) == ((held[0],), ())
    await rig.complete()
    job = await rig.job(held[0].job_id)
    assert (job.state, job.cause) == (JobState.CANCELLED, Cause.USER_CANCELLED)


@pytest.mark.parametrize("how", ["gone", "new incarnation", "lapsed", "leaves"])
async def test_what_a_lost_host_held_is_queued_again_at_no_charge(rig: Rig, how: str) -> None:
    """AHEAD-3."""
    first, held = await hold(rig)
    if how == "gone":
        await rig.store.hosts.move_host("h1", "terminate", "gone", now=rig.now)
    elif how == "new incarnation":
        await rig.host("h1", slots=1)
    elif how == "leaves":
        await rig.sync(ended=[(first, TaskFacts(signal=15, stopped=True))], leaving=True)
    else:
        rig.tick(400)
        began = rig.now
        rig.tick(400)
        await rig.store.leases.lapse_leases(began, now=rig.now)
    for key in held:
        job = await rig.job(key.job_id)
        assert (job.state, job.infra_charged, job.attempts) == (JobState.QUEUED, 0, 1)
        assert job.reason == "host name-h1 was lost and held it ahead; queued in its old place"
    assert (await rig.job(first.job_id)).state is JobState.DRAINING


async def test_a_begun_job_of_a_lost_host_is_charged_as_ever(rig: Rig) -> None:
    first, held = await hold(rig)
    await rig.sync(live=held, started=held[:1], ended=[(first, OK)])
    await rig.store.hosts.move_host("h1", "terminate", "gone", now=rig.now)
    assert (await rig.job(held[0].job_id)).state is JobState.DRAINING
    assert (await rig.job(held[1].job_id)).state is JobState.QUEUED
