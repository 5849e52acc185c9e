"""What only the store on PostgreSQL does: takes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from holdfast.core.arrays.arrays import Member
from holdfast.core.records import TaskRecord, shared_fields
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.moves.values import JobFilter, NewArray, NewJob, OfferedJob, OfferedTask
from tests.store.conformance.takes import full_host, taken
from tests.store.rig import OK, Rig, fails


def offered(task: TaskRecord) -> OfferedTask:
    """The offer of a task on record."""
    shared = {**shared_fields(task, OfferedTask), "devices": tuple(task.devices)}
    return OfferedTask(**shared)


async def test_a_host_fills_the_room_of_its_own_ends(rig: Rig) -> None:
    key = await full_host(rig, slots=2)
    wanted = [await rig.submit(secrets={"TOKEN": "hush"}), await rig.submit()]
    rest = await rig.submit()
    rig.tick(3)
    answer = await rig.sync(ended=[(key, OK)], takes=True)
    assert (answer.acked, taken(answer), answer.settled) == ((key,), wanted, True)
    offer = answer.offers[0]
    assert offer.secrets == {"TOKEN": "hush"}
    job = await rig.job(wanted[0])
    assert job.state is JobState.RESERVED
    assert shared_fields(offer.job, OfferedJob) == shared_fields(job, OfferedJob)
    (task,) = await rig.store.jobs.list_tasks(wanted[0])
    assert offer.task == offered(task), "the offer is what is on record"
    assert (task.epoch, task.attempt, task.barrier) == (1, 1, True)
    assert (task.offered_at, task.lease_until) == (rig.now, rig.now + timedelta(seconds=300))
    (attempt,) = await rig.store.jobs.list_attempts(wanted[0])
    assert (attempt.road, attempt.host_ids, attempt.reason) == (
        "host",
        ("h1",),
        "reserved on name-h1, by the host itself",
    )
    assert await rig.kinds(wanted[0]) == ["job.submitted", "job.reserved"]
    assert (await rig.job(rest)).state is JobState.QUEUED
    again = await rig.sync(ended=[(key, OK)], takes=True)
    assert (again.acked, taken(again)) == ((key,), wanted), "offered again, and nothing more taken"
    mine = [o.task.key for o in again.offers]
    await rig.sync(live=mine, started=mine)
    assert (await rig.job(wanted[0])).state is JobState.RUNNING


async def test_members_of_an_array_that_a_host_takes_have_their_own_specs(rig: Rig) -> None:
    key = await full_host(rig, slots=3)
    array = NewArray(
        id="array-1",
        spec=JobSpec(argv=("train", "{lr}"), name="sweep"),
        queue="cpu",
        members=tuple(Member(index=n, params={"lr": n / 8}) for n in range(3)),
        member_ids=("m0", "m1", "m2"),
        digest="00",
    )
    await rig.store.arrays.submit_array(array, now=rig.now)
    answer = await rig.sync(ended=[(key, OK)], takes=True)
    found = {offer.task.key.job_id: offer.job for offer in answer.offers}
    assert {job_id: (job.name, job.spec.argv[1]) for job_id, job in found.items()} == {
        "m0": ("sweep[0]", "0.0"),
        "m1": ("sweep[1]", "0.125"),
        "m2": ("sweep[2]", "0.25"),
    }


def new_job(job_id: str, **spec: Any) -> NewJob:
    return NewJob(id=job_id, spec=JobSpec(argv=("true",), **spec), queue="cpu")


async def test_a_submission_places_its_job_on_a_host_with_room(rig: Rig) -> None:
    await rig.host(slots=1)
    taker = rig.make_sync("h1", takes=True)
    first = new_job("first", secrets={"TOKEN": "hush"})
    found = await rig.store.leases.submit_to_host(first, taker, await rig.terms(), now=rig.now)
    assert found is not None
    submitted, answer = found
    assert (submitted.created, submitted.job.id, submitted.job.state) == (True, "first", "queued")
    assert (taken(answer), answer.settled, answer.status) == (["first"], True, "ok")
    assert answer.offers[0].secrets == {"TOKEN": "hush"}
    assert answer.offers[0].task == offered((await rig.store.jobs.list_tasks("first"))[0])
    assert await rig.kinds("first") == ["job.submitted", "job.reserved"]
    found = await rig.store.leases.submit_to_host(
        new_job("second"), taker, await rig.terms(), now=rig.now
    )
    assert found is not None
    assert (taken(found[1]), found[1].settled) == ([], True), "it is full"
    assert (await rig.job("second")).state is JobState.QUEUED
    again = await rig.sync()
    assert taken(again) == ["first"], "an answer that was lost is given again"


async def test_a_submission_overtakes_nothing(rig: Rig) -> None:
    await rig.host(slots=1)
    earlier = await rig.submit()
    taker = rig.make_sync("h1", takes=True)
    found = await rig.store.leases.submit_to_host(
        new_job("late"), taker, await rig.terms(), now=rig.now
    )
    assert found is not None
    assert taken(found[1]) == [earlier]
    assert (await rig.job("late")).state is JobState.QUEUED


@pytest.mark.parametrize("why", ["repeated", "same key", "quota"])
async def test_what_is_not_plainly_new_is_left_to_the_usual_road(rig: Rig, why: str) -> None:
    await rig.host()
    if why == "quota":
        await rig.store.settings.put_project("team", {"quota_jobs": 9}, now=rig.now)
    else:
        await rig.submit("there", idempotency_key="one")
    name = "there" if why == "repeated" else "new"
    key = "one" if why == "same key" else None
    taker, terms = rig.make_sync("h1", takes=True), await rig.terms()
    job = new_job(name, idempotency_key=key)
    assert await rig.store.leases.submit_to_host(job, taker, terms, now=rig.now) is None
    jobs = await rig.store.jobs.list_jobs(JobFilter())
    assert [j.id for j in jobs] == ([] if why == "quota" else ["there"])
    assert all(j.state is JobState.QUEUED for j in jobs)


async def test_a_host_that_registered_anew_is_given_nothing_by_a_submission(rig: Rig) -> None:
    await rig.host()
    taker = rig.make_sync("h1", takes=True)
    await rig.host()
    found = await rig.store.leases.submit_to_host(
        new_job("late"), taker, await rig.terms(), now=rig.now
    )
    assert found is not None
    assert (taken(found[1]), found[1].settled) == ([], False)
    assert (await rig.job("late")).state is JobState.QUEUED


async def place_one(rig: Rig, **host: Any) -> None:
    """A submission placed its job on this host, and the job is over: the next one finds the same room."""
    await rig.host(**host)
    found = await rig.submit_to("h1", "before", secrets={"OLD": "1"})
    key = found[1].offers[0].task.key
    await rig.sync(live=[key], started=[key])
    assert (await rig.sync(ended=[(key, OK)])).acked == (key,)


async def test_a_submission_to_a_host_as_it_was_before_is_like_the_first_one(rig: Rig) -> None:
    await place_one(rig, slots=3, gpus=1, labels={"zone": "a"})
    rig.tick(3)
    said: dict[str, Any] = {
        "cpus": 2, "gpus": 1, "priority": 70, "name": "n", "labels": {"a": "b"}, "project": "team",
        "host_labels": {"zone": "a"}, "lease_ttl_seconds": 77.0, "idempotency_key": "k",
        "secrets": {"TOKEN": "hush"}, "preemptible": True,
    }  # fmt: skip
    submitted, answer = await rig.submit_to("h1", "second", **said)
    job = submitted.job
    assert (submitted.created, job.id, job.state, job.epoch) == (True, "second", "queued", 0)
    assert (job.created_at, job.queued_at, job.revision) == (rig.now, rig.now, 0)
    offer = answer.offers[0]
    assert (taken(answer), answer.settled, answer.status) == (["second"], True, "ok")
    assert offer.secrets == {"TOKEN": "hush"}
    (task,) = await rig.store.jobs.list_tasks("second")
    assert offer.task == offered(task), "the offer is what is on record"
    assert (task.devices, task.lease_ttl_seconds, task.barrier) == ((0,), 77.0, True)
    assert (task.offered_at, task.lease_until) == (rig.now, rig.now + timedelta(seconds=77))
    now = await rig.job("second")
    assert shared_fields(offer.job, OfferedJob) == shared_fields(now, OfferedJob)
    assert (now.state, now.epoch, now.attempts, now.revision) == (JobState.RESERVED, 1, 1, 1)
    (attempt,) = await rig.store.jobs.list_attempts("second")
    assert (attempt.road, attempt.host_ids, attempt.reserved_at) == ("host", ("h1",), rig.now)
    assert attempt.reason == now.reason == "reserved on name-h1, by the host itself"
    assert await rig.kinds("second") == ["job.submitted", "job.reserved"]
    assert taken(await rig.sync()) == ["second"], "an answer that was lost is given again"
    key = offer.task.key
    await rig.sync(live=[key], started=[key])
    assert (await rig.sync(ended=[(key, OK)])).acked == (key,)
    assert (await rig.job("second")).state is JobState.SUCCEEDED
    repeated = await rig.store.jobs.submit_jobs(
        [NewJob(id="again", spec=JobSpec(argv=("true",), **said), queue="cpu")], now=rig.now
    )
    assert (repeated[0].created, repeated[0].job.id) == (False, "second")


@pytest.mark.parametrize(
    ("change", "first", "state"),
    [
        ("nothing", ["second"], "reserved"),
        ("a job waits", ["other"], "queued"),
        ("one runs", [], "queued"),
        ("one fell", [], "queued"),
        ("paused", [], "queued"),
        ("drained", [], "queued"),
        ("smaller", [], "queued"),
        ("settings", [], "queued"),
        ("quota", None, None),
        ("same key", None, None),
        ("same id", None, "reserved"),
    ],
)
async def test_a_room_that_is_not_as_it_was_is_read_again(
    rig: Rig, change: str, first: list[str] | None, state: str | None
) -> None:
    await place_one(rig, slots=1)
    taker, terms, store = rig.make_sync("h1", takes=True), await rig.terms(), rig.store
    key = "k" if change == "same key" else None
    if change == "a job waits":
        await rig.submit("other")
    elif change in ("one runs", "one fell"):
        _, runs = await rig.running()
        if change == "one fell":
            await rig.sync(ended=[(runs, fails())])
    elif change == "paused":
        await store.settings.pause_queue("cpu", "now", hard=False, now=rig.now)
    elif change == "drained":
        await store.hosts.move_host("h1", "drain", "asked", now=rig.now)
    elif change == "smaller":
        await rig.host(slots=0, new=False)
    elif change == "settings":
        await store.settings.put_queue("cpu", {"max_running": 9}, now=rig.now)
    elif change == "quota":
        await store.settings.put_project("team", {"quota_jobs": 9}, now=rig.now)
        terms = await rig.terms()
    elif change == "same key":
        await store.jobs.submit_jobs([new_job("there", idempotency_key=key)], now=rig.now)
        await rig.admit()  # so that nothing is queued
    elif change == "same id":
        await store.jobs.submit_jobs([new_job("second")], now=rig.now)
        await rig.admit()
    job = new_job("second", idempotency_key=key)
    found = await store.leases.submit_to_host(job, taker, terms, now=rig.now)
    assert (None if found is None else taken(found[1])) == first
    states = {j.id: str(j.state) for j in await store.jobs.list_jobs(JobFilter())}
    assert states.get("second") == state
