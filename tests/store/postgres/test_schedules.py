"""What every store must do for `store.schedules`: each time once, with its job."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.core.arrays.records import ScheduleRecord
from holdfast.core.arrays.schedules import ScheduleSpec, make_key
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import NotFound, ValidationError
from holdfast.moves.values import JobFilter, NewJob, NewSchedule, ScheduledRun, ScheduledRuns
from tests.store.rig import START, Rig

MINUTE = timedelta(minutes=1)


async def _put(rig: Rig, name: str = "nightly", **fields: Any) -> ScheduleRecord:
    job = JobSpec(argv=("x",), secrets={"TOKEN": "hush"})
    fields = {"job": job, "every_seconds": 60.0, **fields}
    new = NewSchedule(
        id=f"id-{name}-{rig.now.timestamp():.0f}",
        name=name,
        spec=ScheduleSpec(**fields),
        queue="cpu",
        next_at=rig.now + MINUTE,
    )
    return await rig.store.schedules.put_schedule(new, now=rig.now)


def _runs(
    schedule: ScheduleRecord,
    job_id: str | None,
    *,
    after: str = "",
    queue: str = "cpu",
    **more: Any,
) -> ScheduledRuns:
    due = schedule.next_at
    job = None
    if job_id is not None:
        key = make_key(schedule.id, due)
        spec = JobSpec(argv=("x",), idempotency_key=key, after=(after,) if after else ())
        job = NewJob(id=job_id, spec=spec, queue=queue)
    outcome: Any = "submitted" if job else "skipped"
    run = ScheduledRun(due_at=due, outcome=outcome, reason="" if job else "busy", job=job)
    return ScheduledRuns(
        **{
            "schedule_id": schedule.id,
            "expected": due,
            "runs": (run,),
            "next_at": due + MINUTE,
            **more,
        }
    )


async def _write(rig: Rig, runs: ScheduledRuns) -> bool:
    return await rig.store.schedules.write_runs(runs, now=rig.now)


async def test_a_time_makes_one_run_under_two_leaders(rig: Rig) -> None:
    """TIME-1: two leaders that decide the same time, in whatever order they write."""
    schedule = await _put(rig)
    assert await rig.store.schedules.list_due(now=rig.now) == []
    rig.tick(61)
    (due,) = await rig.store.schedules.list_due(now=rig.now)
    assert (due.schedule, due.secrets) == (schedule, {"TOKEN": "hush"})
    wrote = await asyncio.gather(*(_write(rig, _runs(schedule, f"j{n}")) for n in range(3)))
    assert sorted(wrote) == [False, False, True]
    (job,) = await rig.store.jobs.list_jobs(JobFilter())
    (run,) = await rig.store.schedules.list_runs("nightly")
    assert (run.due_at, run.outcome, run.job_id) == (START + MINUTE, "submitted", job.id)
    after = await rig.store.schedules.get_schedule("nightly")
    assert (after.next_at, after.last_job_id) == (START + 2 * MINUTE, job.id)
    assert (after.last_outcome, after.last_state, after.is_busy) == (
        "submitted",
        JobState.QUEUED,
        True,
    )
    assert [e.job_id for e in await rig.events() if e.kind == "schedule.submitted"] == [job.id]


async def test_a_refused_job_leaves_nothing_of_its_run(rig: Rig) -> None:
    schedule = await _put(rig)
    rig.tick(61)
    with pytest.raises(ValidationError):
        await _write(rig, _runs(schedule, "j1", queue="nothere"))
    assert await rig.store.schedules.list_runs("nightly") == []
    assert (await rig.store.schedules.get_schedule("nightly")).next_at == schedule.next_at
    assert await _write(rig, _runs(schedule, None))
    (run,) = await rig.store.schedules.list_runs("nightly")
    assert (run.outcome, run.reason, run.job_id) == ("skipped", "busy", None)
    assert (await rig.kinds())[-1] == "schedule.skipped"


async def test_a_run_may_cancel_the_job_before_it_or_wait_for_it(rig: Rig) -> None:
    schedule = await _put(rig)
    rig.tick(61)
    await rig.host()
    await _write(rig, _runs(schedule, "j1"))
    await rig.admit()
    await rig.sync()
    schedule = await rig.store.schedules.get_schedule("nightly")
    rig.tick(60)
    await _write(rig, _runs(schedule, "j2", after="j1:any", cancel="j1"))
    assert (await rig.job("j1")).state is JobState.DRAINING
    assert "nightly" in ((await rig.job("j1")).drain_reason or "")
    assert (await rig.job("j2")).state is JobState.WAITING
    assert (await rig.store.schedules.get_schedule("nightly")).last_job_id == "j2"


async def test_a_run_beside_the_times_changes_none_of_them(rig: Rig) -> None:
    schedule = await _put(rig)
    runs = _runs(schedule, "j1", expected=None, next_at=None)
    assert await _write(rig, runs)
    after = await rig.store.schedules.get_schedule("nightly")
    assert (after.next_at, after.last_job_id) == (schedule.next_at, "j1")


async def test_a_pause_lets_no_time_come(rig: Rig) -> None:
    schedule = await _put(rig)
    paused = await rig.store.schedules.pause_schedule("nightly", "holidays", now=rig.now)
    assert (paused.paused_at, paused.paused_reason) == (rig.now, "holidays")
    rig.tick(3600)
    assert await rig.store.schedules.list_due(now=rig.now) == []
    assert not await _write(rig, _runs(schedule, "j1"))
    following = rig.now + MINUTE
    resumed = await rig.store.schedules.resume_schedule("nightly", following, now=rig.now)
    assert (resumed.paused_at, resumed.next_at) == (None, following)
    again = await rig.store.schedules.resume_schedule("nightly", START, now=rig.now)
    assert again.next_at == following, "a second word to resume changes nothing"
    kinds = [kind for kind in await rig.kinds() if kind.startswith("schedule.")]
    assert kinds == ["schedule.created", "schedule.paused", "schedule.resumed"]


async def test_a_change_keeps_the_runs_and_moves_the_times_only_with_the_timing(rig: Rig) -> None:
    first = await _put(rig)
    assert "hush" not in repr(first)
    rig.tick(30)
    same = await _put(rig, job=JobSpec(argv=("y",), secrets={"TOKEN": "new"}))
    assert (same.id, same.next_at, same.anchor) == (first.id, first.next_at, first.anchor)
    assert same.spec.job.argv == ("y",)
    assert await rig.store.schedules.read_secrets("nightly") == {"TOKEN": "new"}
    other = await _put(rig, every_seconds=None, cron="0 3 * * *")
    assert (other.id, other.next_at, other.anchor) == (first.id, rig.now + MINUTE, rig.now)


async def test_schedules_are_listed_found_and_deleted(rig: Rig) -> None:
    await _put(rig, "b")
    await _put(rig, "a")
    assert [s.name for s in await rig.store.schedules.list_schedules()] == ["a", "b"]
    await rig.store.schedules.delete_schedule("a", now=rig.now)
    assert [s.name for s in await rig.store.schedules.list_schedules()] == ["b"]
    for call in (
        rig.store.schedules.get_schedule("a"),
        rig.store.schedules.delete_schedule("a"),
        rig.store.schedules.pause_schedule("a", ""),
        rig.store.schedules.list_runs("a"),
        rig.store.schedules.read_secrets("a"),
    ):
        with pytest.raises(NotFound):
            await call


async def test_old_runs_are_forgotten(rig: Rig) -> None:
    schedule = await _put(rig)
    for n in range(3):
        rig.tick(60)
        await _write(rig, _runs(schedule, None))
        schedule = await rig.store.schedules.get_schedule("nightly")
        assert len(await rig.store.schedules.list_runs("nightly", limit=2)) == min(n + 1, 2)
    rig.tick(86_400 - 90)
    assert await rig.store.schedules.prune_runs(1, now=rig.now) == 1
    kept: list[datetime] = [r.due_at for r in await rig.store.schedules.list_runs("nightly")]
    assert kept == [START + 3 * MINUTE, START + 2 * MINUTE]


async def test_the_owner_of_a_schedule_owns_its_jobs_and_keeps_it(rig: Rig) -> None:
    """OWNER-1."""

    async def put(owner: str, every: float) -> ScheduleRecord:
        new = NewSchedule(
            id=f"id-{owner}", name="nightly", owner=owner, queue="cpu",
            spec=ScheduleSpec(job=JobSpec(argv=("x",)), every_seconds=every),
            next_at=rig.now + MINUTE,
        )  # fmt: skip
        return await rig.store.schedules.put_schedule(new, now=rig.now)

    assert (await put("", 60.0)).owner == ""
    assert (await put("alice", 60.0)).owner == "alice", "it had no owner"
    assert (await put("bob", 90.0)).owner == "alice"
    rig.tick(61)
    (due,) = await rig.store.schedules.list_due(now=rig.now)
    assert due.schedule.owner == "alice"


async def test_an_input_is_known_while_a_job_or_a_schedule_names_it(rig: Rig) -> None:
    names = ["a1" * 32, "b2" * 32, "c3" * 32]
    await rig.submit(stdin=names[0])
    await rig.submit()
    await _put(rig, job=JobSpec(argv=("true",), stdin=names[1]))
    assert await rig.store.checkpoints.find_inputs(names) == set(names[:2])
    assert await rig.store.checkpoints.find_inputs([]) == set()
