"""What every store must do about quotas (QUOTA-1, QUOTA-2). Run like `conformance`, on both
stores."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.core.causes import Cause
from holdfast.core.placement.plan import JobPlacement, QuotaLeft, TaskPlacement
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import QuotaExceeded
from holdfast.moves.values import JobFilter, NewJob
from tests.store.rig import STOPPED, Rig


def new_jobs(count: int, prefix: str = "n", **spec: Any) -> list[NewJob]:
    given = {"argv": ("true",), "project": "p", **spec}
    return [NewJob(id=f"{prefix}{i}", spec=JobSpec(**given), queue="cpu") for i in range(count)]


async def jobs_of(rig: Rig, project: str = "p") -> list[str]:
    return sorted(job.id for job in await rig.store.jobs.list_jobs(JobFilter(project=project)))


async def test_without_quotas_admission_knows_of_none(rig: Rig) -> None:
    await rig.host()
    await rig.store.settings.put_project("p", {"max_retries": 2}, now=rig.now)
    await rig.submit(project="p")
    snapshot = await rig.store.admission.read_admission(10, now=rig.now)
    assert snapshot.quotas == {}
    assert [c.project for c in snapshot.candidates] == ["p"]


async def test_a_soft_quota_lets_jobs_wait(rig: Rig) -> None:
    """QUOTA-2."""
    await rig.host(slots=9)
    await rig.store.settings.put_project("p", {"quota_jobs": 2}, now=rig.now)
    mine = [await rig.submit(project="p") for _ in range(4)]
    other = await rig.submit(project="q")
    assert (await rig.store.admission.read_admission(9, now=rig.now)).quotas == {
        "p": QuotaLeft(jobs=2)
    }
    assert await rig.admit() == [*mine[:2], other]
    assert await rig.admit() == []
    assert (await rig.store.admission.read_admission(9, now=rig.now)).quotas == {
        "p": QuotaLeft(jobs=0)
    }
    project = await rig.store.settings.get_project("p")
    assert (project.running, project.unfinished) == (2, 4)


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


async def test_gpus_are_counted_over_all_tasks(rig: Rig) -> None:
    await rig.host(slots=9, gpus=8)
    await rig.store.settings.put_project("p", {"quota_gpus": 5}, now=rig.now)
    gang = await rig.submit(project="p", tasks=2, gpus=2)
    wide, narrow, none = [await rig.submit(project="p", gpus=n) for n in (2, 1, 0)]
    assert await rig.admit() == [gang, narrow, none]
    assert (await rig.store.settings.get_project("p")).gpus == 5
    assert (await rig.job(wide)).state is JobState.QUEUED
    for job_id in (gang, narrow):
        await rig.store.jobs.cancel_job(job_id, "", now=rig.now)
    assert await rig.admit() == [wide]


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


async def test_placements_from_an_old_snapshot_do_not_exceed_a_quota(rig: Rig) -> None:
    """Two leaders for a moment: both planned on the same snapshot, and both write."""
    await rig.host(slots=9, gpus=8)
    await rig.store.settings.put_project("p", {"quota_jobs": 3, "quota_gpus": 4}, now=rig.now)
    jobs = [await rig.submit(project="p", gpus=1) for _ in range(6)]
    incarnation = rig.incarnations["h1"]

    def place(number: int) -> JobPlacement:
        task = TaskPlacement(rank=0, host_id="h1", incarnation=incarnation, devices=(number,))
        return JobPlacement(job_id=jobs[number], epoch=0, tasks=(task,))

    ttls = dict.fromkeys(jobs, 300.0)
    one = rig.store.admission.reserve([place(i) for i in (0, 1, 2)], ttls, now=rig.now)
    two = rig.store.admission.reserve([place(i) for i in (3, 4, 5)], ttls, now=rig.now)
    applied = await asyncio.gather(one, two)
    assert sorted(map(len, applied)) == [0, 3]
    assert (await rig.store.settings.get_project("p")).running == 3
