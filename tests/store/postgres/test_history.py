"""What every store must do as the history ends: nothing goes before all that names it (HISTORY-1)."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.core.arrays.arrays import Member
from holdfast.core.arrays.schedules import ScheduleSpec
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.values import JobWork, NodeSpec, NodeState, WorkflowSpec
from holdfast.errors import NotFound
from holdfast.moves.values import (
    JobFilter,
    NewArray,
    NewJob,
    NewSchedule,
    NodeOrigin,
    ScheduledRun,
    ScheduledRuns,
)
from holdfast.moves.workflows import NewRun, Processed, Started
from holdfast.store.postgres.calls.values import CallSetOrigin
from tests.store.conformance.shared import succeed
from tests.store.rig import Rig

TRUE = JobSpec(argv=("true",))
DAYS = 30.0
OF_RUN, OF_SET, OF_NOTHING = "a" * 64, "b" * 64, "c" * 64
RUN = "0" * 19 + "r"


async def prune(rig: Rig) -> None:
    """What the sweeps do, as often as they may."""
    for _ in range(3):
        await rig.store.workflows.prune_runs(DAYS, now=rig.now)
        await rig.store.calls.prune_sets(DAYS, now=rig.now)
        await rig.store.jobs.prune(DAYS, now=rig.now)


async def submit_array(rig: Rig) -> None:
    new = NewArray(
        id="array-1",
        spec=TRUE,
        queue="cpu",
        members=tuple(Member(index=n) for n in range(2)),
        member_ids=("member-0", "member-1"),
        at_once=1,
        digest="00",
    )
    await rig.store.arrays.submit_array(new, now=rig.now)


async def submit_run(rig: Rig) -> str:
    """Submit a run of two nodes, the first of which is a job; return the job's id."""
    nodes = [
        NodeSpec(name="a", job=JobWork(spec=TRUE)),
        NodeSpec(name="b", after=("a",), job=JobWork(spec=TRUE)),
    ]
    spec = WorkflowSpec(name="flow", nodes=nodes)
    new = NewRun(id=RUN, spec=spec, parents=check_workflow(spec).parents)
    await rig.store.workflows.submit_run(new, now=rig.now)
    (post,) = await rig.store.workflows.read_outbox(now=rig.now)
    job = NewJob(id=post.ref, spec=TRUE, queue="cpu", origin=NodeOrigin(run=RUN, node=post.node))
    await rig.store.jobs.submit_jobs([job], now=rig.now)
    await rig.store.workflows.record_posts(
        RUN, [Processed(post=post, change=Started())], now=rig.now
    )
    return post.ref


async def end_node(rig: Rig, node: int) -> None:
    posts = [p for p in await rig.store.workflows.read_outbox(now=rig.now) if p.node == node]
    result = NodeEnd(state=NodeState.SUCCEEDED, result=f'{{"$blob":"{OF_RUN}","size":1}}')
    await rig.store.workflows.record_posts(
        RUN, [Processed(post=p, change=result) for p in posts[:1]], now=rig.now
    )


async def submit_set(rig: Rig, set_id: str, text: str, run: str | None = None) -> None:
    spec = FunctionSpec(function="m:f")
    origin = None if run is None else CallSetOrigin(run=run, node=1)
    await rig.store.calls.create_set(
        set_id, spec, "cpu", count=1, args=[text], origin=origin, now=rig.now
    )


async def submit_schedule(rig: Rig) -> None:
    spec = ScheduleSpec(job=TRUE, every_seconds=366 * 86_400.0)
    new = NewSchedule(id="schedule-1", name="yearly", spec=spec, queue="cpu", next_at=rig.now)
    await rig.store.schedules.put_schedule(new, now=rig.now)
    job = NewJob(id="of-schedule", spec=TRUE, queue="cpu")
    run = ScheduledRun(due_at=rig.now, outcome="submitted", job=job)
    runs = ScheduledRuns(schedule_id="schedule-1", expected=None, runs=(run,), next_at=None)
    assert await rig.store.schedules.write_runs(runs, now=rig.now)


async def test_nothing_goes_while_what_names_it_is_open(rig: Rig) -> None:
    """A month passes while an array, a run, a call, a dependency and a schedule are open; a second
    one after their ends, and all of it is gone."""
    store = rig.store
    await rig.host(slots=1)
    alone, parent = await rig.submit(), await rig.submit()
    await succeed(rig, alone)
    await succeed(rig, parent)
    await rig.submit("child", after=(parent,), start_at=rig.now.timestamp() + 9e6)
    await submit_array(rig)
    await rig.fail("member-0")
    await submit_schedule(rig)
    await succeed(rig, "of-schedule")
    node_job = await submit_run(rig)
    await succeed(rig, node_job)
    await end_node(rig, 0)
    await submit_set(
        rig, "set-open", f'{{"$args":{{}},"$large":[[["x"],{{"sha256":"{OF_SET}"}}]]}}'
    )
    await submit_set(rig, "set-of-run", "{}", RUN)
    await store.calls.cancel_calls("set-of-run", reason="enough", now=rig.now)

    rig.tick(DAYS * 86_400 + 3600)
    await prune(rig)
    with pytest.raises(NotFound):
        await rig.job(alone)
    for job_id in ("member-0", "of-schedule", node_job):
        assert (await rig.job(job_id)).state.terminal, job_id
        assert await store.jobs.list_attempts(job_id)
        assert "job.submitted" in await rig.kinds(job_id)
    array = await store.arrays.get_array("array-1")
    assert (array.size, array.counts.get(JobState.FAILED)) == (2, 1)
    kinds = await rig.kinds()
    assert "array.submitted" in kinds
    assert "workflow.submitted" in kinds
    assert "host.registered" not in kinds
    assert (await store.calls.read_set("set-of-run")).state == "ended"
    named = await store.calls.find_known_values([OF_RUN, OF_SET, OF_NOTHING])
    assert named == {OF_RUN, OF_SET}

    await store.jobs.cancel_job("member-1", "enough", now=rig.now)
    await store.jobs.cancel_job("child", "enough", now=rig.now)
    await store.workflows.cancel_run(RUN, "enough", now=rig.now)
    for post in await store.workflows.read_outbox(now=rig.now):
        await store.workflows.record_posts(
            RUN, [Processed(post=post, change=NodeEnd(state=NodeState.CANCELLED))], now=rig.now
        )
    await store.calls.cancel_calls("set-open", reason="enough", now=rig.now)
    await store.schedules.delete_schedule("yearly", now=rig.now)
    await prune(rig)
    assert (await store.arrays.get_array("array-1")).counts.get(JobState.FAILED) == 1
    assert await store.calls.find_known_values([OF_SET]) == {OF_SET}, "its set has just ended"

    rig.tick(DAYS * 86_400 + 3600)
    await prune(rig)
    assert await store.jobs.list_jobs(JobFilter()) == []
    with pytest.raises(NotFound):
        await store.arrays.get_array("array-1")
    assert await store.calls.list_sets() == []
    assert await store.workflows.list_runs() == []
    assert await store.calls.find_known_values([OF_RUN, OF_SET]) == set()
    assert await rig.events() == []


async def test_a_member_that_is_retried_keeps_its_whole_array(rig: Rig) -> None:
    await rig.host(slots=1)
    await submit_array(rig)
    await rig.fail("member-0")
    await rig.store.arrays.advance_arrays(now=rig.now)
    await rig.fail("member-1")
    rig.tick(DAYS * 86_400 + 3600)
    assert await rig.store.arrays.retry_array("array-1", "again", now=rig.now) == 2
    await rig.store.arrays.advance_arrays(now=rig.now)
    await rig.sync()
    await succeed(rig, "member-0")
    await prune(rig)
    assert len(await rig.store.jobs.list_jobs(JobFilter(array_id="array-1"))) == 2
    assert msgspec.structs.asdict(await rig.store.arrays.get_array("array-1"))["size"] == 2


async def test_bytes_go_by_the_rows_of_an_answer_and_never_by_its_absence(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DOUBT-3: a connection that answers nothing makes no blob an orphan."""

    async def answer_nothing(*_: object, **__: object) -> list[object]:
        return []

    store, job = rig.store, await rig.submit()
    blob, value = f"{job}/0/1/1", "0" * 64
    assert await store.checkpoints.find_known_blobs([blob]) == set(), "no row names it"
    assert await store.calls.find_known_values([value]) == set()
    monkeypatch.setattr(store.session, "rows", answer_nothing)
    assert await store.checkpoints.find_known_blobs([blob]) == {blob}
    assert await store.checkpoints.find_inputs([value]) == {value}
    assert await store.calls.find_known_values([value]) == {value}
    assert await store.bundles.find_known(["p"], ["q"]) == {"p", "q"}
    assert await store.call_checkpoints.find_known_blobs(["calls/s/0/1"]) == {"calls/s/0/1"}
