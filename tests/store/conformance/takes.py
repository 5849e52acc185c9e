"""What every store must do with jobs that hosts take for themselves (TAKE-1, TAKE-2)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import PASSED_SECONDS
from holdfast.core.records import shared_fields
from holdfast.core.states import JobState
from holdfast.moves.values import HostSynced, OfferedJob
from tests.store.rig import OK, Rig, fails


async def full_host(rig: Rig, slots: int = 1, gpus: int = 0, **spec: object) -> TaskKey:
    """A host whose every slot is taken by one job that runs."""
    await rig.host(slots=slots, gpus=gpus)
    return (await rig.running(cpus=slots, gpus=gpus, **spec))[1]


def taken(answer: HostSynced) -> list[str]:
    return [offer.task.key.job_id for offer in answer.offers]


async def test_each_offer_is_of_its_own_job_however_alike_they_are(rig: Rig) -> None:
    """Twice, because what alike jobs have in common is remembered."""
    key = await full_host(rig, slots=8)
    for _ in range(2):
        wanted = [await rig.submit(env={"N": n}, name=n) for n in ("a", "a", "b", "a", "c", "b")]
        rig.tick(3)
        answer = await rig.sync(ended=[(key, OK)], takes=True)
        assert taken(answer) == wanted
        for offer in answer.offers:
            job = await rig.job(offer.task.key.job_id)
            assert shared_fields(offer.job, OfferedJob) == shared_fields(job, OfferedJob)
        keys = [offer.task.key for offer in answer.offers]
        await rig.sync(live=keys, started=keys)
        await rig.sync(ended=[(k, OK) for k in keys[1:]])
        key = keys[0]


async def test_the_room_of_a_job_that_fell_waits_for_its_decision(rig: Rig) -> None:
    """TAKE-3: it may be queued again at the front."""
    key = await full_host(rig)
    behind = await rig.submit()
    answer = await rig.sync(ended=[(key, fails())], takes=True)
    assert (answer.acked, taken(answer), answer.settled) == ((key,), [], False)
    assert taken(await rig.sync(takes=True)) == [], "nor with a later sync"
    await rig.complete()
    assert taken(await rig.sync(takes=True)) == [behind]


async def test_the_leaders_road_is_on_record_too(rig: Rig) -> None:
    await rig.host()
    job_id, _ = await rig.running()
    assert [a.road for a in await rig.store.jobs.list_attempts(job_id)] == ["leader"]


async def test_a_retry_that_a_host_takes_is_its_next_attempt(rig: Rig) -> None:
    await rig.host("h1", slots=1)
    await rig.host("h2", slots=1)
    job_id, key = await rig.running()
    first = (await rig.store.jobs.list_tasks(job_id))[0].host_id or ""
    other = "h2" if first == "h1" else "h1"
    _, busy = await rig.running(host=other)
    await rig.sync(first, ended=[(key, fails())])
    await rig.complete(max_retries=3)
    await rig.release()
    answer = await rig.sync(other, ended=[(busy, OK)], takes=True)
    assert taken(answer) == [job_id]
    roads = [(a.number, a.parent, a.road) for a in await rig.store.jobs.list_attempts(job_id)]
    assert roads == [(1, None, "leader"), (2, 1, "host")]


async def test_two_hosts_of_one_batch_share_what_waits(rig: Rig) -> None:
    keys = {}
    for name in ("h1", "h2"):
        await rig.host(name, slots=1)
        _, keys[name] = await rig.running(host=name)
    wanted = [await rig.submit(), await rig.submit(), await rig.submit()]
    syncs = [
        msgspec.structs.replace(rig.make_sync(name), live=(), ended=((keys[name], OK),), takes=True)
        for name in keys
    ]
    answers = await rig.store.leases.sync_hosts(syncs, terms=await rig.terms(), now=rig.now)
    assert [taken(a) for a in answers] == [[wanted[0]], [wanted[1]]]


@pytest.mark.parametrize(
    "why", ["no terms", "settings", "queue", "paused", "leaving", "quarantined"]
)
async def test_where_something_binds_nothing_is_taken(rig: Rig, why: str) -> None:
    key = await full_host(rig)
    wanted = await rig.submit()
    terms = await rig.terms()
    if why == "settings":
        await rig.store.settings.write_cluster_settings({"grace_seconds": 7.0}, now=rig.now)
    elif why == "queue":
        terms = msgspec.structs.replace(terms, ttls={"gpu": 60.0})
    elif why == "paused":
        await rig.store.settings.pause_queue("cpu", "because", hard=False, now=rig.now)
    elif why == "quarantined":
        await rig.store.hosts.move_host("h1", "quarantine", "why", now=rig.now)
    sync = msgspec.structs.replace(
        rig.make_sync("h1"), ended=((key, OK),), takes=True, leaving=why == "leaving"
    )
    given = None if why == "no terms" else terms
    (answer,) = await rig.store.leases.sync_hosts([sync], terms=given, now=rig.now)
    assert (answer.acked, taken(answer)) == ((key,), [])
    assert (await rig.job(wanted)).state is JobState.QUEUED
    # Of a paused queue the leader can start nothing either.
    assert answer.settled == (why == "paused")


async def test_a_gang_that_comes_first_is_not_overtaken(rig: Rig) -> None:
    key = await full_host(rig)
    gang = await rig.submit(tasks=2, priority=90)
    small = await rig.submit()
    answer = await rig.sync(ended=[(key, OK)], takes=True)
    assert (taken(answer), answer.settled) == ([], False)
    assert [(await rig.job(i)).state for i in (gang, small)] == [JobState.QUEUED] * 2


@pytest.mark.parametrize(
    ("holds", "age", "goes"),
    [(False, 0.0, True), (False, PASSED_SECONDS + 1, False), (True, 0.0, False)],
)
async def test_hosts_go_past_it_by_the_leaders_fresh_word_alone(
    rig: Rig, holds: bool, age: float, goes: bool
) -> None:
    key = await full_host(rig)
    gang = await rig.submit(tasks=2, priority=90)
    small = await rig.submit()
    await rig.store.admission.note_passed([gang], holds=holds, now=rig.now)
    rig.tick(age)
    answer = await rig.sync(ended=[(key, OK)], takes=True)
    assert taken(answer) == ([small] if goes else [])


async def test_the_leaders_word_is_kept_fresh(rig: Rig) -> None:
    key = await full_host(rig)
    gang = await rig.submit(tasks=2, priority=90)
    small = await rig.submit()
    for _ in range(3):
        await rig.store.admission.note_passed([gang], holds=False, now=rig.now)
        rig.tick(PASSED_SECONDS - 2)
    answer = await rig.sync(ended=[(key, OK)], takes=True)
    assert taken(answer) == [small]


async def test_devices_that_are_taken_are_the_free_ones(rig: Rig) -> None:
    await rig.host(slots=4, gpus=3)
    stays, key = await rig.running(gpus=2, queue="gpu")
    _, goes = await rig.running(gpus=1, queue="gpu")
    wanted = await rig.submit(gpus=1, queue="gpu")
    answer = await rig.sync(live=[key], ended=[(goes, OK)], takes=True)
    assert taken(answer) == [wanted]
    held = {
        d
        for job in (stays, wanted)
        for t in await rig.store.jobs.list_tasks(job)
        for d in t.devices
    }
    assert held == {0, 1, 2}


async def test_jobs_own_leases_count(rig: Rig) -> None:
    key = await full_host(rig)
    await rig.submit(lease_ttl_seconds=77.0)
    answer = await rig.sync(ended=[(key, OK)], takes=True)
    assert [o.task.lease_ttl_seconds for o in answer.offers] == [77.0]


async def test_a_host_without_ends_takes_nothing(rig: Rig) -> None:
    await rig.host()
    await rig.submit()
    assert taken(await rig.sync()) == []
