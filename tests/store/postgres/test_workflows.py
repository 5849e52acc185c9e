"""What every store must do for `store.workflows`, with jobs as the work of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from holdfast.core.spec import JobSpec
from holdfast.core.workflows.advance import NodeEnd
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.records import RunRecord
from holdfast.core.workflows.values import AskWork, JobWork, NodeSpec, NodeState, WorkflowSpec
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.values import NewJob, NodeOrigin
from holdfast.moves.workflows import (
    ASK_OVER,
    JOB_ENDED,
    START,
    STOP,
    STOP_HARD,
    STOP_QUEUED,
    NewRun,
    Post,
    Processed,
    Started,
)
from tests.store.rig import OK, Rig, fails

RUN = "0" * 20
GOOD = NodeEnd(state=NodeState.SUCCEEDED, result='{"n": 1}')
BAD = NodeEnd(state=NodeState.FAILED, reason="it broke")
TRUE = JobSpec(argv=("true",))


def node(name: str, *after: str, ask: AskWork | None = None) -> NodeSpec:
    job = None if ask is not None else JobWork(spec=TRUE)
    return NodeSpec(name=name, after=after, job=job, ask=ask)


@dataclass
class Flows:
    """The steps a dispatcher takes."""

    rig: Rig

    async def submit(self, *nodes: NodeSpec, run: str = RUN, **fields: Any) -> RunRecord:
        spec = WorkflowSpec(name="flow", nodes=list(nodes), **fields)
        new = NewRun(id=run, spec=spec, parents=check_workflow(spec).parents)
        return await self.rig.store.workflows.submit_run(new, now=self.rig.now)

    async def posts(self, **more: Any) -> list[Post]:
        return await self.rig.store.workflows.read_outbox(now=self.rig.now, **more)

    async def record(
        self, posts: Sequence[Post], *changes: Any, run: str = RUN
    ) -> RunRecord | None:
        found = [Processed(post=p, change=c) for p, c in zip(posts, changes, strict=True)]
        return await self.rig.store.workflows.record_posts(run, found, now=self.rig.now)

    async def states(self, run: str = RUN) -> str:
        """The nodes' states in order, by their first letters (S: succeeded, s: started)."""
        found = await self.rig.store.workflows.list_nodes(run)
        letters = {"succeeded": "S", "skipped": "k"}
        return "".join(letters.get(n.state.value, n.state.value[0]) for n in found)

    async def start(self) -> dict[int, str]:
        """Submit the jobs of nodes to be started; return their ids by node."""
        posts = [p for p in await self.posts() if p.kind == START]
        for post in posts:
            origin = NodeOrigin(run=post.run, node=post.node)
            job = NewJob(id=post.ref, spec=TRUE, queue="cpu", origin=origin)
            await self.rig.store.jobs.submit_jobs([job], now=self.rig.now)
        await self.record(posts, *[Started() for _ in posts])
        return {post.node: post.ref for post in posts}


@pytest.fixture
def flows(rig: Rig) -> Flows:
    return Flows(rig)


async def test_a_chain_advances_and_each_end_counts_once(flows: Flows) -> None:
    run = await flows.submit(node("a"), node("b", "a"), node("c", "a", "b"))
    assert (run.state, run.unended, run.nodes) == ("running", 3, 3)
    assert await flows.states() == "rww"
    (start,) = await flows.posts()
    assert (start.node, start.kind, len(start.ref)) == (0, START, 20)
    await flows.record([start], Started())
    assert await flows.states() == "sww"
    assert await flows.posts() == []
    end = await end_post(flows, 0)
    await flows.record([end], GOOD)
    await flows.record([end], BAD)  # the post is gone, so this does nothing (POST-1)
    assert await flows.states() == "Srw"
    (start,) = await flows.posts()
    await flows.record([start], GOOD)
    (start,) = await flows.posts()
    assert start.node == 2
    over = await flows.record([start], NodeEnd(state=NodeState.SKIPPED))
    assert over is not None
    assert (over.state, over.unended) == ("succeeded", 0)
    assert over.ended_at == flows.rig.now
    kinds = [kind for kind in await flows.rig.kinds() if kind.startswith("workflow.")]
    assert kinds == ["workflow.submitted", "workflow.node_skipped", "workflow.succeeded"]
    works = await flows.rig.store.workflows.read_works(RUN, [0, 2])
    assert (works[0].result, works[2].result) == ('{"n": 1}', None)


async def end_post(flows: Flows, number: int) -> Post:
    """Run the node's job to its end, and return the post that tells of it."""
    works = await flows.rig.store.workflows.read_works(RUN, [number])
    ref = works[number].ref
    assert ref is not None
    origin = NodeOrigin(run=RUN, node=number)
    job = NewJob(id=ref, spec=TRUE, queue="cpu", origin=origin)
    await flows.rig.store.jobs.submit_jobs([job], now=flows.rig.now)
    await flows.rig.store.jobs.cancel_job(ref, "enough", now=flows.rig.now)
    (post,) = [p for p in await flows.posts() if p.kind == JOB_ENDED]
    return post


async def test_every_way_a_job_ends_writes_its_post_in_that_transaction(flows: Flows) -> None:
    await flows.submit(*[node(name) for name in "abcd"])
    jobs = await flows.start()
    rig = flows.rig
    await rig.host("h1", slots=8)
    await rig.admit()
    await rig.sync("h1")
    keys = {n: await rig.key(job) for n, job in jobs.items()}
    await rig.sync("h1", live=list(keys.values()), started=list(keys.values()))
    _, alone = await rig.running()
    answer = await rig.sync("h1", ended=[(alone, OK)])
    assert (answer.acked, answer.posted) == ((alone,), False), "no workflow waits for it"
    both = [(keys[0], OK), (keys[1], fails())]  # the fast path, and a drain
    assert (await rig.sync("h1", ended=both)).posted
    assert {p.ref for p in await flows.posts()} == {jobs[0]}
    await rig.complete()
    assert {p.ref for p in await flows.posts()} == {jobs[0], jobs[1]}
    await rig.store.jobs.cancel_job(jobs[2], "enough", now=rig.now)
    await rig.sync("h1", ended=[(keys[2], OK), (keys[3], OK)])
    await rig.complete()
    posts = await flows.posts()
    assert {(p.kind, p.node, p.ref) for p in posts} == {
        (JOB_ENDED, n, job) for n, job in jobs.items()
    }
    other = await rig.submit()  # a job of no node writes none
    await rig.store.jobs.cancel_job(other, "enough", now=rig.now)
    assert len(await flows.posts()) == 4


async def test_a_failure_cancels_what_has_not_begun_and_names_the_node(flows: Flows) -> None:
    await flows.submit(node("a"), node("b"), node("c", "b"), node("d", "c"), ask_node("e"))
    await flows.start()
    a, b = [await flows.rig.store.workflows.find_node(RUN, name) for name in "ab"]
    assert a.ref is not None
    assert b.ref is not None
    post = await end_post(flows, 1)
    run = await flows.record([post], BAD)
    assert run is not None
    assert (run.state, run.failed_node) == ("failing", "b")
    assert run.reason == "node b failed: it broke"
    assert await flows.states() == "sfccc"
    (stop,) = [p for p in await flows.posts() if p.kind != START]
    assert (stop.kind, stop.ref) == (STOP_QUEUED, a.ref)
    await flows.record([stop], None)
    run = await flows.record([await end_post(flows, 0)], GOOD)
    assert run is not None
    assert run.state == "failed"
    assert (await flows.rig.store.workflows.find_node(RUN, "d")).reason == "node b did not succeed"


def ask_node(name: str, *after: str, **fields: Any) -> NodeSpec:
    return node(name, *after, ask=AskWork(prompt="go on?", **fields))


async def test_with_continue_only_descendants_fall(flows: Flows) -> None:
    await flows.submit(
        node("a"), node("b", "a"), node("c", "b"), node("x"), node("y", "x"), on_failure="continue"
    )
    start, other = await flows.posts()
    run = await flows.record([start], BAD)
    assert run is not None
    assert run.state == "failing"
    assert await flows.states() == "fccrw"
    await flows.record([other], GOOD)
    assert await flows.states() == "fccSr"
    (last,) = await flows.posts()
    run = await flows.record([last], GOOD)
    assert run is not None
    assert (run.state, run.failed_node) == ("failed", "a")


async def test_a_restart_runs_what_did_not_succeed_under_the_same_ids(flows: Flows) -> None:
    await flows.submit(node("a"), node("b", "a"), node("c", "b"))
    store = flows.rig.store.workflows
    with pytest.raises(Conflict, match="only one that has ended"):
        await store.restart_run(RUN, "again")
    (post,) = await flows.posts()
    await flows.record([post], GOOD)
    (post,) = await flows.posts()
    await flows.record([post], BAD)
    run = await store.restart_run(RUN, "asked by ada", now=flows.rig.now)
    assert (run.state, run.unended, run.failed_node, run.ended_at) == ("running", 2, None, None)
    (again,) = await flows.posts()
    assert (again.node, again.ref) == (1, post.ref)
    assert await flows.states() == "Srw"
    works = await store.read_works(RUN, [0])
    assert works[0].result == GOOD.result
    await flows.record([again], GOOD)
    (post,) = await flows.posts()
    await flows.record([post], GOOD)
    with pytest.raises(Conflict, match="every node"):
        await store.restart_run(RUN, "again")
    with pytest.raises(NotFound, match="no node 'z'"):
        await store.restart_run(RUN, "again", origins=["z"])
    run = await store.restart_run(RUN, "from b", origins=["b"], now=flows.rig.now)
    assert run.unended == 2
    (anew,) = await flows.posts()
    assert anew.node == 1
    assert anew.ref != again.ref
    await flows.record([anew], GOOD)
    (post,) = await flows.posts()
    await flows.record([post], GOOD)
    assert (await store.get_run(RUN)).state == "succeeded"


async def test_an_end_of_an_earlier_round_changes_nothing(flows: Flows) -> None:
    await flows.submit(node("a"))
    post = await end_post(flows, 0)
    starts = [p for p in await flows.posts() if p.kind == START]
    await flows.record(starts, GOOD)
    await flows.rig.store.workflows.restart_run(RUN, "anew", origins=["a"], now=flows.rig.now)
    await flows.record([post], BAD)
    assert await flows.states() == "r"


async def test_cancel_tells_what_runs_to_stop_and_ends_the_rest(flows: Flows) -> None:
    await flows.submit(node("a"), node("b", "a"), ask_node("q"))
    store = flows.rig.store.workflows
    await flows.start()
    run = await store.cancel_run(RUN, "enough", now=flows.rig.now)
    assert (run.state, run.reason) == ("cancelling", "enough")
    assert await flows.states() == "scc"
    (stop,) = await flows.posts()
    assert (stop.kind, stop.node) == (STOP, 0)
    run = (
        await flows.record(
            [await end_post(flows, 0)], NodeEnd(state=NodeState.CANCELLED, reason="enough")
        )
        or run
    )
    assert run.state == "cancelled"
    assert (await store.cancel_run(RUN, "more")).reason == "enough"
    with pytest.raises(NotFound):
        await store.cancel_run("nowhere", "enough")


async def test_a_cancel_waits_for_a_start_that_may_be_under_way(flows: Flows) -> None:
    """FLOW-5."""
    await flows.submit(node("a"), node("b", "a"))
    store = flows.rig.store.workflows
    (begun,) = await flows.posts()
    run = await store.cancel_run(RUN, "enough", hard=True, now=flows.rig.now)
    assert (run.state, await flows.states()) == ("cancelling", "rc")
    assert [p.kind for p in await flows.posts()] == [START, STOP_HARD]
    await flows.record([begun], Started())
    assert await flows.states() == "sc"
    ends = [await end_post(flows, 0)]
    run = await flows.record(ends, NodeEnd(state=NodeState.CANCELLED)) or run
    assert run.state == "cancelled"
    # A leader that slept submits it once more: it is stopped.
    await flows.record([stop for stop in await flows.posts() if stop.kind == STOP_HARD], None)
    assert await flows.posts() == []
    await flows.record([begun], Started())
    assert [(p.kind, p.ref) for p in await flows.posts()] == [(STOP_HARD, begun.ref)]


async def test_a_question_waits_without_a_host_and_is_answered_once(flows: Flows) -> None:
    await flows.submit(ask_node("q", choices=("yes", "no")), node("a", "q"))
    store = flows.rig.store.workflows
    with pytest.raises(Conflict, match="does not ask yet"):
        await store.answer_node(RUN, "q", "yes", "ada")
    (start,) = await flows.posts()
    await flows.record([start], Started(prompt="go on?", over_seconds=120.0))
    assert await flows.posts() == []
    with pytest.raises(ValidationError, match="one of yes, no"):
        await store.answer_node(RUN, "q", "perhaps", "ada")
    with pytest.raises(Conflict, match="asks nothing"):
        await store.answer_node(RUN, "a", "yes", "ada")
    found = await store.answer_node(RUN, "q", "yes", "ada", now=flows.rig.now)
    assert (found.state, found.reason) == ("succeeded", "answered by ada: yes")
    with pytest.raises(Conflict, match="was answered"):
        await store.answer_node(RUN, "q", "no", "ada")
    assert await flows.states() == "Sr"
    assert (await store.read_parents(RUN, [1], ["q"]))["q"].result == '"yes"'
    flows.rig.tick(121)
    over = [p for p in await flows.posts() if p.kind == ASK_OVER]
    assert len(over) == 1  # and it changes nothing any more
    await flows.record(over, BAD)
    assert await flows.states() == "Sr"


async def test_a_post_that_fails_waits_and_is_set_aside_with_an_alarm(flows: Flows) -> None:
    await flows.submit(node("a"), node("b"))
    await flows.submit(node("x"), run="1" * 20)
    poison, other, away = await flows.posts()
    store = flows.rig.store.workflows
    await store.postpone_post(poison, "it choked", 5.0, now=flows.rig.now)
    assert await flows.posts() == [other, away]
    flows.rig.tick(6)
    (again, *_) = await flows.posts()
    assert (again.n, again.tries, again.error) == (poison.n, 1, "it choked")
    run = await store.set_aside(again, "it choked again", now=flows.rig.now)
    assert run is not None
    assert (run.state, run.failed_node) == ("failing", "a")
    (stop,) = [p for p in await flows.posts() if p.kind == STOP_QUEUED]
    run = await flows.record([stop], NodeEnd(state=NodeState.CANCELLED)) or run
    assert run.state == "failed"
    assert "set aside after 2 tries: it choked again" in run.reason
    assert "workflow.set_aside" in await flows.rig.kinds()
    assert [p.run for p in await flows.posts() if p.run != RUN] == ["1" * 20]


async def test_secrets_of_jobs_are_kept_apart(flows: Flows) -> None:
    spec = JobSpec(argv=("true",), secrets={"KEY": "hunter2"})
    hidden = NodeSpec(name="a", job=JobWork(spec=spec))
    await flows.submit(hidden, node("b"))
    await flows.submit(hidden, node("b"))  # the same again
    store = flows.rig.store.workflows
    works = await store.read_works(RUN, [0, 1])
    assert "hunter2" not in repr(works)
    assert works[0].spec.job is not None
    assert works[0].spec.job.spec.secrets == {"KEY": ""}
    assert await store.read_secrets(RUN, [0, 1]) == {0: {"KEY": "hunter2"}}
    other = msgspec.structs.replace(spec, secrets={"KEY": "another"})
    with pytest.raises(Conflict, match=f"run {RUN} is there already.* differs from it in secrets;"):
        await flows.submit(NodeSpec(name="a", job=JobWork(spec=other)), node("b"))
    longer = msgspec.structs.replace(spec, argv=("true", "x"))
    with pytest.raises(Conflict, match=r"node a \(job\.spec\.argv \(2 in place of 1\)\);"):
        await flows.submit(NodeSpec(name="a", job=JobWork(spec=longer)), node("b"))


async def test_a_large_run_keeps_no_other_waiting(flows: Flows) -> None:
    await flows.submit(*[node(f"n{i}") for i in range(20)])
    await flows.submit(node("x"), run="1" * 20)
    posts = await flows.posts(rows=5)
    assert [p.run for p in posts] == [RUN] * 5 + ["1" * 20]
    assert len(await flows.posts(runs=1, rows=5)) == 5


async def test_a_submission_is_repeated_without_harm(flows: Flows) -> None:
    first = await flows.submit(node("a"))
    assert await flows.submit(node("a")) == first
    assert len(await flows.posts()) == 1
    with pytest.raises(Conflict, match=r"differs from it in node b \(new\);"):
        await flows.submit(node("b"))
    with pytest.raises(Conflict, match=r"differs from it in nodes \(2 in place of 1\), node b"):
        await flows.submit(node("b"), node("a"))


async def test_runs_are_listed_and_pruned(flows: Flows) -> None:
    await flows.submit(node("a"), labels={"team": "red"})
    await flows.submit(node("a"), run="1" * 20, project="blue")
    store = flows.rig.store.workflows
    assert [r.id for r in await store.list_runs()] == ["1" * 20, RUN]
    assert [r.id for r in await store.list_runs(project="blue")] == ["1" * 20]
    assert [r.id for r in await store.list_runs(before="1" * 20)] == [RUN]
    assert (await store.get_run(RUN)).labels == {"team": "red"}
    await store.cancel_run(RUN, "enough", now=flows.rig.now)
    stop = next(p for p in await flows.posts() if p.kind == STOP)
    await flows.record([stop], NodeEnd(state=NodeState.CANCELLED))
    assert [r.id for r in await store.list_runs(states=["cancelled"])] == [RUN]
    assert await store.count_nodes(RUN) == {"cancelled": 1}
    flows.rig.tick(86_400 * 3)
    assert await store.prune_runs(5.0, now=flows.rig.now) == 0
    assert await store.prune_runs(2.0, now=flows.rig.now) == 1
    assert [r.id for r in await store.list_runs()] == ["1" * 20]
    with pytest.raises(NotFound, match="workflow list"):
        await store.get_run(RUN)
    assert await flows.record([Post(n=1, run=RUN, node=0, kind=START)], GOOD) is None
