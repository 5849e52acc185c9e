"""What only the store on PostgreSQL does: jobs."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from holdfast.core.arrays.arrays import Member
from holdfast.core.calls.executors import make_executor_spec
from holdfast.core.calls.values import Family
from holdfast.core.causes import Cause
from holdfast.core.records import JobRecord
from holdfast.core.run_seed import SEED_VARIABLE, mint_secrets
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import Conflict, NotFound, QuotaExceeded, ValidationError
from holdfast.moves.values import ArrayFilter, JobFilter, NewArray, NewJob
from holdfast.wire.agent import Forensics
from tests.store.conformance.shared import TRIPPED, chains, events_of
from tests.store.rig import OK, START, STOPPED, Rig, fails


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


async def test_many_jobs_are_cancelled_together_each_by_its_state(rig: Rig) -> None:
    await rig.host(slots=2)
    running, key = await rig.running()
    ended, _ = await rig.running()
    await rig.sync(ended=[(await rig.key(ended), OK)], live=[key])
    waiting = await rig.submit(start_at=(START + timedelta(hours=1)).timestamp())
    queued = [await rig.submit() for _ in range(3)]
    ids = [*queued, "nothing", waiting, ended, running, queued[0]]
    done = await rig.store.jobs.cancel_jobs(ids, "enough", now=rig.now)
    assert {job_id: job.state for job_id, job in done.jobs.items()} == {
        **dict.fromkeys([*queued, waiting], JobState.CANCELLED),
        ended: JobState.SUCCEEDED,
        running: JobState.DRAINING,
    }
    assert isinstance(done.refused.pop("nothing"), NotFound)
    assert done.refused == {}
    for job_id in (*queued, waiting):
        assert done.jobs[job_id] == await rig.job(job_id)
        assert [e.message for e in await events_of(rig, job_id, "job.cancelled")] == ["enough"]
    assert [stop.key for stop in (await rig.sync(live=[key])).preempts] == [key]
    await rig.admit()
    assert not (await rig.sync(live=[key])).offers

    events = len(await rig.events())
    again = await rig.store.jobs.cancel_jobs(ids, "once more", now=rig.now)
    assert {job.reason for job in again.jobs.values()} >= {"enough"}
    assert len(await rig.events()) == events  # nothing is done twice


async def test_many_jobs_are_cancelled_hard(rig: Rig) -> None:
    await rig.host(slots=2)
    pairs = [await rig.running() for _ in range(2)]
    ids, keys = [job_id for job_id, _ in pairs], [key for _, key in pairs]
    await rig.store.jobs.cancel_jobs(ids, "stop", now=rig.now)
    assert not any(stop.hard for stop in (await rig.sync(live=keys)).preempts)
    await rig.store.jobs.cancel_jobs(ids, "now", hard=True, now=rig.now)
    assert [stop.hard for stop in (await rig.sync(live=keys)).preempts] == [True, True]


async def test_many_jobs_are_revived_together_and_one_that_cannot_be_holds_up_no_other(
    rig: Rig,
) -> None:
    await rig.host(slots=8)
    await rig.set_queue("old")
    failed, key = await rig.running()
    await rig.sync(ended=[(key, fails(3))])
    await rig.complete()
    running, _ = await rig.running()
    cancelled, orphan = await rig.submit(), await rig.submit(queue="old")
    await rig.store.jobs.cancel_jobs([cancelled, orphan], "", now=rig.now)
    await rig.store.settings.delete_queue("old", now=rig.now)
    assert (await rig.job(failed)).state is JobState.FAILED

    reasons = {i: f"again, {i}" for i in (running, cancelled, "nothing", orphan, failed)}
    done = await rig.store.jobs.revive_jobs(reasons, now=rig.now)
    assert {i: (j.state, j.reason) for i, j in done.jobs.items()} == {
        i: (JobState.QUEUED, f"again, {i}") for i in (failed, cancelled)
    }
    assert {i: type(error) for i, error in done.refused.items()} == {
        running: Conflict,
        "nothing": NotFound,
        orphan: ValidationError,
    }
    assert done.jobs[failed] == await rig.job(failed)
    assert [e.message for e in await events_of(rig, failed, "job.revived")] == [reasons[failed]]
    await rig.admit()
    assert len(await rig.store.jobs.list_tasks(failed)) == 1


async def test_many_counted_revivals_go_on_with_the_budgets_of_each(rig: Rig) -> None:
    await rig.host(slots=2)
    job_id, key = await rig.running(retry={"max_retries": 0})
    await rig.sync(ended=[(key, fails(3))])
    await rig.complete()
    never = await rig.submit()
    await rig.store.jobs.cancel_job(never, "", now=rig.now)
    ids = [job_id, never]
    done = await rig.store.jobs.revive_jobs(
        dict.fromkeys(ids, "more"), counted=True, from_scratch=True, now=rig.now
    )
    assert {i: j.counted_retries for i, j in done.jobs.items()} == dict.fromkeys(ids, 1)


async def test_a_quota_lets_the_first_of_many_be_revived(rig: Rig) -> None:
    ids = [await rig.submit() for _ in range(4)]
    await rig.store.jobs.cancel_jobs(ids, "", now=rig.now)
    await rig.store.settings.put_project("default", {"quota_jobs": 2, "quota": "hard"}, now=rig.now)
    done = await rig.store.jobs.revive_jobs(dict.fromkeys(reversed(ids), "again"), now=rig.now)
    assert sorted(done.jobs) == sorted(ids)[:2]
    assert sorted(done.refused) == sorted(ids)[2:]
    for error in done.refused.values():
        assert isinstance(error, QuotaExceeded)
        assert "it has 2, so 0 more would fit" in error.message


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
    assert caught.value.message == (
        "idempotency key 'k' named job a1, and this one differs from it in secrets; use a new key for "
        "a new job"
    )
    more = msgspec.structs.replace(spec, argv=("a", "b"), env={"LR": "2"})
    with pytest.raises(Conflict, match=r"differs from it in argv \(2 in place of 1\), env\.LR;"):
        await rig.store.jobs.submit_jobs([NewJob(id="a6", spec=more, queue="cpu")], now=rig.now)
    bare = msgspec.structs.replace(more, argv=("a",), idempotency_key=None)
    with pytest.raises(Conflict, match=r"job a1 is there already, .* differs from it in env\.LR"):
        await rig.store.jobs.submit_jobs([NewJob(id="a1", spec=bare, queue="cpu")], now=rig.now)
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
    assert [j.id for j in await list_jobs(JobFilter(names=("n1",)))] == [ids[3], ids[1]]
    assert [j.id for j in await list_jobs(JobFilter(part="N1"))] == [ids[3], ids[1]]
    assert await list_jobs(JobFilter(part="%")) == []
    newest = (await list_jobs(JobFilter(limit=1)))[0].created_at
    assert ids[4] in [j.id for j in await list_jobs(JobFilter(since=newest))]
    assert await list_jobs(JobFilter(since=newest + timedelta(seconds=1))) == []
    assert [j.id for j in await list_jobs(JobFilter(projects=("q",)))] == [ids[0]]
    both = JobFilter(projects=("q", "p"), names=("n0", "n7"))
    assert [j.id for j in await list_jobs(both)] == [ids[4], ids[2], ids[0]]
    assert [j.id for j in await list_jobs(JobFilter(prefix=ids[0]))] == [ids[0]]
    assert [j.id for j in await list_jobs(JobFilter(prefix=ids[0][:1]))] == ids[::-1]
    assert await list_jobs(JobFilter(prefix="_", limit=1)) == []
    await rig.store.jobs.cancel_job(ids[2], "", now=rig.now)
    assert [j.id for j in await list_jobs(JobFilter(states=("cancelled",)))] == [ids[2]]
    assert [j.id for j in await list_jobs(JobFilter(causes=("user_cancelled",)))] == [ids[2]]
    assert await rig.store.jobs.count_jobs() == {("cpu", "queued"): 4}
    assert await list_jobs(JobFilter(queues=("gpu",))) == []
    with pytest.raises(NotFound):
        await rig.store.jobs.list_attempts("nothing")


async def test_prune_takes_old_ended_jobs_with_everything(rig: Rig) -> None:
    await rig.host()
    old, key = await rig.running(idempotency_key="k", secrets={"A": "b"})
    await rig.append_log("h1", key, "stdout", 0, b"bytes", True, 1000)
    await rig.store.logs.put_forensics(
        "h1", Forensics(key=key, reason="r", seconds=1.0, sections={})
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


def new_jobs(count: int, prefix: str = "n", **spec: Any) -> list[NewJob]:
    given = {"argv": ("true",), "project": "p", **spec}
    return [NewJob(id=f"{prefix}{i}", spec=JobSpec(**given), queue="cpu") for i in range(count)]


async def jobs_of(rig: Rig, project: str = "p") -> list[str]:
    return sorted(job.id for job in await rig.store.jobs.list_jobs(JobFilter(projects=(project,))))


async def test_a_hard_quota_refuses_the_whole_call(rig: Rig) -> None:
    """QUOTA-1."""
    await rig.store.settings.put_project("p", {"quota_jobs": 3, "quota": "hard"}, now=rig.now)
    await rig.store.jobs.submit_jobs(new_jobs(2), now=rig.now)
    with pytest.raises(QuotaExceeded) as refused:
        await rig.store.jobs.submit_jobs(new_jobs(2, "more"), now=rig.now)
    assert refused.value.code == "quota_exceeded"
    assert (
        "may have 3 unfinished jobs (quota_jobs); it has 2, so 1 more would fit, and this adds 2"
        in refused.value.message
    )
    assert await jobs_of(rig) == ["n0", "n1"]
    assert (await rig.kinds()).count("job.submitted") == 2
    await rig.store.jobs.submit_jobs(new_jobs(1, "more"), now=rig.now)
    await rig.store.jobs.submit_jobs(new_jobs(9, "other", project="q"), now=rig.now)


async def test_a_waiting_job_counts_for_a_hard_quota_and_an_ended_one_does_not(rig: Rig) -> None:
    await rig.host()
    await rig.store.settings.put_project("p", {"quota_jobs": 1, "quota": "hard"}, now=rig.now)
    job_id = await rig.submit(project="p")
    await rig.fail(job_id, max_retries=1, retry_delay=60.0)
    with pytest.raises(QuotaExceeded):
        await rig.submit(project="p")
    await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    second = await rig.submit(project="p")
    with pytest.raises(QuotaExceeded):  # a person's retry would be one job too many, too
        await rig.store.jobs.revive_job(job_id, "again", now=rig.now)
    assert (await rig.job(job_id)).state is JobState.CANCELLED
    await rig.store.jobs.cancel_job(second, "", now=rig.now)
    assert (await rig.store.jobs.revive_job(job_id, "again", now=rig.now)).state is JobState.QUEUED


async def test_a_repeated_submission_is_not_refused(rig: Rig) -> None:
    await rig.store.settings.put_project("p", {"quota_jobs": 1, "quota": "hard"}, now=rig.now)
    (job,) = new_jobs(1, idempotency_key="k")
    (first,) = await rig.store.jobs.submit_jobs([job], now=rig.now)
    (again,) = await rig.store.jobs.submit_jobs([job], now=rig.now)
    (other,) = await rig.store.jobs.submit_jobs(
        [NewJob(id="z", spec=job.spec, queue="cpu")], now=rig.now
    )
    assert (first.created, again.created, other.created, other.job.id) == (True, True, False, "n0")
    with pytest.raises(QuotaExceeded):
        await rig.store.jobs.submit_jobs([*new_jobs(1, "m"), job], now=rig.now)


async def test_hard_gpus(rig: Rig) -> None:
    await rig.store.settings.put_project("p", {"quota_gpus": 8, "quota": "hard"}, now=rig.now)
    await rig.store.jobs.submit_jobs(new_jobs(1, tasks=3, gpus=2), now=rig.now)
    with pytest.raises(
        QuotaExceeded,
        match=r"8 GPUs together.*they ask for 6, so 2 more would fit, and this adds 4",
    ):
        await rig.store.jobs.submit_jobs(new_jobs(2, "b", gpus=2), now=rig.now)
    await rig.store.jobs.submit_jobs(new_jobs(5, "cpu-only"), now=rig.now)
    await rig.store.jobs.submit_jobs(new_jobs(1, "b", gpus=2), now=rig.now)
    await rig.store.settings.put_project("p", {"quota_gpus": 1}, now=rig.now)
    await rig.store.jobs.submit_jobs(
        new_jobs(5, "cpu-too"), now=rig.now
    )  # over quota, but not of what these ask for


@pytest.mark.parametrize("kind", ["soft", "hard"])
async def test_a_job_that_alone_is_over_the_quota_is_refused(rig: Rig, kind: str) -> None:
    await rig.store.settings.put_project("p", {"quota_gpus": 4, "quota": kind}, now=rig.now)
    with pytest.raises(
        QuotaExceeded, match="a job of 6 GPUs can never start in project p, which may hold 4"
    ) as refused:
        await rig.store.jobs.submit_jobs(new_jobs(1, tasks=3, gpus=2), now=rig.now)
    assert refused.value.field == "gpus"
    assert await jobs_of(rig) == []
    await rig.store.jobs.submit_jobs(new_jobs(1, tasks=2, gpus=2), now=rig.now)


async def test_submissions_that_race_do_not_exceed_a_hard_quota(rig: Rig) -> None:
    await rig.store.settings.put_project("p", {"quota_jobs": 7, "quota": "hard"}, now=rig.now)
    calls = [rig.store.jobs.submit_jobs(new_jobs(2, f"r{i}-"), now=rig.now) for i in range(8)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(a, list) for a in answers) == 3
    assert all(isinstance(a, list | QuotaExceeded) for a in answers)
    assert len(await jobs_of(rig)) == 6


async def test_attempts_of_many_jobs(rig: Rig) -> None:
    long, short, queued = await chains(rig)
    asked = [long, short, queued, "nobody", long]
    found = await rig.store.jobs.list_attempts_of(asked, last=100)
    assert set(found) == {long, short}
    for job_id in (long, short):
        whole = await rig.store.jobs.list_attempts(job_id)
        assert found[job_id] == [msgspec.structs.replace(a, members=()) for a in whole]
    assert [a.number for a in found[long]] == [1, 2, 3, 4]
    newest = await rig.store.jobs.list_attempts_of(asked, last=2)
    assert [a.number for a in newest[long]] == [3, 4]
    assert [a.number for a in newest[short]] == [1]
    older = await rig.store.jobs.list_attempts_of(asked, last=2, before=3)
    assert ([a.number for a in older[long]], [a.number for a in older[short]]) == ([1, 2], [1])
    (oom,) = (await rig.store.jobs.list_attempts_of(asked, last=5, cause=Cause.OOM_KILLED))[long]
    assert oom.number == 2
    assert await rig.store.jobs.list_attempts_of([], last=5) == {}


async def test_attempts_by_their_keys_have_members(rig: Rig) -> None:
    long, short, queued = await chains(rig)
    keys = [(long, 2), (short, 1), (long, 9), (queued, 1), (long, 2)]
    found = await rig.store.jobs.get_attempts(keys, members=True)
    assert set(found) == {(long, 2), (short, 1)}
    assert found[long, 2] == (await rig.store.jobs.list_attempts(long))[1]
    assert [m.exit_code for m in found[short, 1].members] == [7]
    bare = await rig.store.jobs.get_attempts(keys)
    assert bare == {
        key: msgspec.structs.replace(attempt, members=()) for key, attempt in found.items()
    }
    assert await rig.store.jobs.get_attempts([]) == {}


async def test_members_of_many_attempts(rig: Rig) -> None:
    await rig.host()
    gang = await rig.submit(tasks=4)
    await rig.admit()
    keys = [await rig.key(gang, rank) for rank in range(4)]
    await rig.sync(claimed=[(key, 1234 if key.rank == 0 else 0) for key in keys])
    await rig.sync()
    await rig.sync(live=keys, started=keys)
    await rig.sync(ended=[(keys[2], fails(5)), *((key, STOPPED) for key in keys if key.rank != 2)])
    await rig.complete()
    (attempt,) = await rig.store.jobs.list_attempts(gang)
    assert len(attempt.members) == 4
    asked = [(gang, 1), (gang, 2), ("nobody", 1)]
    assert await rig.store.jobs.list_members_of(asked, first=9) == {
        (gang, 1): list(attempt.members)
    }
    page = await rig.store.jobs.list_members_of(asked, first=2, after=0)
    assert [(m.rank, m.exit_code, m.trigger) for m in page[gang, 1]] == [
        (1, None, False),
        (2, 5, True),
    ]
    assert await rig.store.jobs.list_members_of(asked, first=2, after=3) == {}


async def test_tasks_of_many_jobs(rig: Rig) -> None:
    await rig.host()
    gang, single = await rig.submit(tasks=4), await rig.submit()
    await rig.admit()
    found = await rig.store.jobs.list_tasks_of([gang, single, "nobody"], first=100)
    assert found == {
        gang: await rig.store.jobs.list_tasks(gang),
        single: await rig.store.jobs.list_tasks(single),
    }
    page = await rig.store.jobs.list_tasks_of([gang, single], first=2, after=0)
    assert [t.rank for t in page[gang]] == [1, 2]
    assert single not in page
    assert page[gang][0].host_name == "name-h1"


async def test_jobs_and_hosts_by_id(rig: Rig) -> None:
    await rig.host("h1")
    await rig.host("h2")
    await rig.store.hosts.move_host("h2", "terminate", "sold", now=rig.now)
    one, two = await rig.submit(), await rig.submit()
    assert await rig.store.jobs.get_jobs([one, two, "nobody"]) == {
        one: await rig.job(one),
        two: await rig.job(two),
    }
    found = await rig.store.hosts.get_hosts(["h1", "h2", "name-h1"])
    assert found == {name: await rig.store.hosts.get_host(name) for name in ("h1", "h2")}
    assert (await rig.store.jobs.get_jobs([]), await rig.store.hosts.get_hosts([])) == ({}, {})


async def test_places_of_many_jobs(rig: Rig) -> None:
    first, second = await rig.submit(), await rig.submit()
    urgent, other = await rig.submit(priority=90), await rig.submit(queue="gpu", gpus=1)
    asked = [first, second, urgent, other, "nobody"]
    found = await rig.store.jobs.queue_places(asked)
    assert found == {first: 1, second: 2, urgent: 0, other: 0}
    await rig.host()
    await rig.admit()
    assert set(await rig.store.jobs.queue_places(asked)) == {other}


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
    assert await found(causes=("nonzero_exit",)) == {never, once, waiting}


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


async def test_executors_are_listed_apart_and_by_family(rig: Rig) -> None:
    plain = await rig.submit()
    families = [Family(app=app, queue="cpu") for app in ("mytasks", "films")]
    jobs = [
        NewJob(id=f"e{number}", spec=make_executor_spec(family), queue="cpu")
        for number, family in enumerate(families)
    ]
    await rig.store.jobs.submit_jobs(jobs, now=rig.now)
    listed = rig.store.jobs.list_jobs
    assert {job.id for job in await listed(JobFilter())} == {plain, "e0", "e1"}
    assert [job.id for job in await listed(JobFilter(executors="hide"))] == [plain]
    only = await listed(JobFilter(executors="only", states=(JobState.QUEUED,)))
    assert {job.id for job in only} == {"e0", "e1"}
    mine = await listed(JobFilter(executors="only", family=families[1].name))
    assert [(job.id, job.spec.executor) for job in mine] == [("e1", families[1].name)]


async def test_jobs_that_a_script_supervises_are_listed_apart(rig: Rig) -> None:
    await rig.submit()
    supervised = await rig.submit(tasks=2, supervised=True)
    found = await rig.store.jobs.list_jobs(JobFilter(supervised=True))
    assert [job.id for job in found] == [supervised]


async def test_a_job_keeps_its_owner_on_every_road(rig: Rig) -> None:
    """OWNER-1."""
    await rig.host()
    spec = JobSpec(argv=("true",))

    async def submit(job_id: str, owner: str) -> JobRecord:
        new = NewJob(id=job_id, spec=spec, queue="cpu", owner=owner)
        return (await rig.store.jobs.submit_jobs([new], now=rig.now))[0].job

    assert (await submit("job-a", "alice")).owner == "alice"
    placed = await rig.store.leases.submit_to_host(
        NewJob(id="job-b", spec=spec, queue="cpu", owner="bob"),
        rig.make_sync("h1", takes=True),
        await rig.terms(),
        now=rig.now,
    )
    if placed is None:  # a store may leave it to the leader
        await submit("job-b", "bob")
    assert placed is None or placed[0].job.owner == "bob"
    again = NewJob(id="job-a", spec=spec, queue="cpu", owner="mallory")
    assert (await rig.store.jobs.submit_jobs([again], now=rig.now))[0].job.owner == "alice"
    assert await rig.store.jobs.get_jobs(["job-a", "job-b"])
    mine = await rig.store.jobs.list_jobs(JobFilter(owners=("alice",)))
    assert [(job.id, job.owner) for job in mine] == [("job-a", "alice")]
    told = [e.data["owner"] for e in await rig.events() if e.kind == "job.submitted"]
    assert sorted(told) == ["alice", "bob"]


async def test_members_of_an_array_have_its_owner(rig: Rig) -> None:
    """OWNER-1."""
    new = NewArray(
        id="array-1",
        spec=JobSpec(argv=("true",)),
        queue="cpu",
        owner="alice",
        members=(Member(index=0), Member(index=1)),
        member_ids=("m0", "m1"),
        digest="00",
    )
    made = await rig.store.arrays.submit_array(new, now=rig.now)
    assert made.array.owner == "alice"
    assert {j.owner for j in await rig.store.jobs.list_jobs(JobFilter(array_id="array-1"))} == {
        "alice"
    }
    assert [a.id for a in await rig.store.arrays.list_arrays(ArrayFilter(owners=("alice",)))]
    assert not await rig.store.arrays.list_arrays(ArrayFilter(owners=("bob",)))
