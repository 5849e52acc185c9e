"""The dispatcher: calls as nodes, and posts that cannot be processed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.controller.loops.workflows import DispatchLoop
from holdfast.controller.runtime.context import Controller
from holdfast.controller.workflows.why import explain_node
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.records import NodeRecord
from holdfast.core.workflows.values import WorkflowSpec
from holdfast.errors import Unavailable
from holdfast.moves.workflows import NewRun
from tests.simulated.blobs import MemoryBlobs
from tests.store.rig import Rig

RUN, OTHER = "0" * 20, "1" * 20


class Flow:
    """A dispatcher, its store and the time it is told."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.store = rig, rig.store
        self.controller = Controller(self.store, blobs=MemoryBlobs())
        self.loop = DispatchLoop(self.controller)

    async def submit(self, *nodes: dict[str, Any], run: str = RUN) -> None:
        spec = msgspec.convert({"name": "w", "nodes": list(nodes)}, WorkflowSpec)
        new = NewRun(id=run, spec=spec, parents=check_workflow(spec).parents)
        await self.store.workflows.submit_run(new)

    async def node(self, name: str, run: str = RUN) -> NodeRecord:
        return await self.store.workflows.find_node(run, name)


@pytest.fixture
def flow(told_rig: Rig) -> Flow:
    return Flow(told_rig)


def job(name: str, *after: str) -> dict[str, Any]:
    return {"name": name, "job": {"spec": {"argv": ["true"], "queue": "cpu"}}, "after": after}


def call(name: str, **fields: Any) -> dict[str, Any]:
    spec = {"function": f"mytasks:{name}", "queue": "cpu"}
    return {"name": name, "call": {"spec": spec, **fields}}


async def test_calls_of_a_node_are_one_set_and_a_cancelled_one_ends_it(flow: Flow) -> None:
    ask = {"name": "q", "ask": {"prompt": "which?", "timeout_seconds": "off"}}
    answer = {"$node": "q"}
    each = call("each", over=[1, 2, answer], item="x", args={"why": answer})
    await flow.submit(ask, each)
    await flow.loop.run_once()
    await flow.store.workflows.answer_node(RUN, "q", "that", "ada")
    await flow.loop.run_once()
    node = await flow.node("each")
    assert node.state == "started"
    view = await flow.store.calls.read_set(str(node.ref))
    assert (view.submitted, view.count, view.state) == (3, 3, "open")
    standing = await flow.store.calls.read_call(str(node.ref), 2)
    assert standing.phase == "ready"
    await flow.store.calls.cancel_calls(str(node.ref), reason="enough")
    await flow.loop.run_once()
    node = await flow.node("each")
    assert (node.state, node.reason) == ("cancelled", "3 of 3 calls were cancelled; call 0: enough")
    # A restart retries the calls of the same set.
    await flow.store.workflows.restart_run(RUN, "again")
    await flow.loop.run_once()
    again = await flow.node("each")
    assert (again.state, again.ref) == ("started", node.ref)
    view = await flow.store.calls.read_set(str(node.ref))
    assert (view.submitted, view.cancelled, view.state) == (3, 0, "open")
    await flow.store.workflows.cancel_run(RUN, "enough")
    await flow.loop.run_once()
    assert (await flow.store.workflows.get_run(RUN)).state == "cancelled"


class Interrupted:
    """The store's calls, or jobs: `before` runs before the method `name`."""

    def __init__(self, inner: Any, name: str, before: Any) -> None:
        self.inner, self.name, self.before = inner, name, before

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if name != self.name:
            return found

        async def call(*args: Any, **more: Any) -> Any:
            await self.before()
            return await found(*args, **more)

        return call


async def test_a_cancel_while_a_list_is_handed_out_cancels_the_rest_as_it_comes(flow: Flow) -> None:
    """FLOW-5, and a restart has every call of the list."""
    asked: list[bool] = []

    async def cancel() -> None:
        if not asked:
            asked.append(True)
            run = await flow.store.workflows.cancel_run(RUN, "enough", hard=True)
            assert run.state == "cancelling"

    calls = flow.store.calls
    flow.store.calls = Interrupted(calls, "append_calls", cancel)  # type: ignore[assignment]  # a double
    await flow.submit(call("each", over=list(range(25_000)), item="x"))
    await flow.loop.run_once()
    assert (await flow.store.workflows.get_run(RUN)).state == "cancelled"
    node = await flow.node("each")
    view = await calls.read_set(str(node.ref))
    assert (view.state, view.submitted, view.cancelled) == ("ended", 25_000, 25_000)
    await flow.store.workflows.restart_run(RUN, "again")
    await flow.loop.run_once()
    view = await calls.read_set(str(node.ref))
    assert (view.state, view.submitted, view.cancelled) == ("open", 25_000, 0)


async def test_a_list_that_a_dead_leader_handed_out_in_part_is_cancelled_whole(flow: Flow) -> None:

    async def die() -> None:
        raise Unavailable("the leader is dead")

    calls = flow.store.calls
    flow.store.calls = Interrupted(calls, "append_calls", die)  # type: ignore[assignment]  # a double
    await flow.submit(call("each", over=list(range(25_000)), item="x"))
    with pytest.raises(Unavailable):
        await flow.loop.run_once()
    flow.store.calls = calls
    assert (await flow.store.workflows.cancel_run(RUN, "enough")).state == "cancelling"
    await flow.loop.run_once()
    assert (await flow.store.workflows.get_run(RUN)).state == "cancelled"
    view = await calls.read_set(str((await flow.node("each")).ref))
    assert (view.state, view.submitted, view.cancelled) == ("ended", 25_000, 25_000)


@pytest.mark.parametrize("again", [False, True])
async def test_a_job_that_was_not_submitted_is_not_after_a_cancel(flow: Flow, again: bool) -> None:
    await flow.submit(job("a"))
    if again:  # it was cancelled before, so an ended job is there under its id
        await flow.loop.run_once()
        await flow.store.workflows.cancel_run(RUN, "enough")
        await flow.loop.run_once()
        await flow.store.workflows.restart_run(RUN, "again")
    assert (await flow.node("a")).state == "ready"
    await flow.store.workflows.cancel_run(RUN, "enough")
    await flow.loop.run_once()
    assert (await flow.store.workflows.get_run(RUN)).state == "cancelled"
    jobs = await flow.store.jobs.get_jobs([str((await flow.node("a")).ref)])
    assert [j.state for j in jobs.values()] == (["cancelled"] if again else [])


async def test_an_empty_list_is_mapped_to_an_empty_list(flow: Flow) -> None:
    await flow.submit(call("each", over=[], item="x"))
    await flow.loop.run_once()
    works = await flow.store.workflows.read_works(RUN, [0])
    assert (works[0].state, works[0].result) == ("succeeded", "[]")


async def test_what_is_no_list_is_not_mapped_over(flow: Flow) -> None:
    await flow.submit(call("each", over={"a": 1}, item="x"))
    await flow.loop.run_once()
    run = await flow.store.workflows.get_run(RUN)
    assert run.reason == (
        "node each failed: it maps over a list, and was given an object with the keys a"
    )


class Choking:
    """The store's jobs, which cannot take those of one run."""

    def __init__(self, jobs: Any) -> None:
        self.jobs = jobs
        self.tries = 0

    async def submit_jobs(self, jobs: Any, **more: Any) -> Any:
        if any(one.origin.run == RUN for one in jobs):
            self.tries += 1
            raise RuntimeError("it choked")
        return await self.jobs.submit_jobs(jobs, **more)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.jobs, name)


async def test_a_poison_post_is_set_aside_after_ten_tries_and_holds_up_no_other(
    flow: Flow, caplog: pytest.LogCaptureFixture
) -> None:
    choking = Choking(flow.store.jobs)
    flow.store.jobs = choking  # type: ignore[assignment]  # a double
    await flow.submit(job("a"), job("b", "a"))
    await flow.submit(job("x"), run=OTHER)
    await flow.loop.run_once()
    assert (await flow.node("x", OTHER)).state == "started"  # past the poison one
    assert (await flow.node("a")).state == "ready"
    for _ in range(40):
        flow.rig.tick(61)
        await flow.loop.run_once()
    assert choking.tries == 10
    run = await flow.store.workflows.get_run(RUN)
    assert (run.state, run.failed_node) == ("failed", "a")
    assert "set aside after 10 tries: RuntimeError: it choked" in run.reason
    assert (await flow.node("b")).state == "cancelled"
    assert await flow.store.workflows.read_outbox() == []
    events = await flow.rig.kinds()
    assert events.count("workflow.set_aside") == 1
    alarms = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(alarms) == 1
    metrics = flow.controller.metrics.registry
    assert metrics.get_sample_value("holdfast_workflow_posts_set_aside_total") == 1.0


async def test_a_job_that_is_refused_fails_its_node_alone_with_the_reason(flow: Flow) -> None:
    lost = job("lost")
    lost["job"]["spec"]["queue"] = "gone"
    await flow.submit(lost, job("sound"))
    await flow.loop.run_once()
    run = await flow.store.workflows.get_run(RUN)
    assert "there is no queue 'gone'" in run.reason
    assert (await flow.node("lost")).state == "failed"


async def test_why_names_what_holds_the_calls_of_a_node(flow: Flow) -> None:
    await flow.submit(call("each", over=[1, 2], item="x"))
    await flow.loop.run_once()
    run = await flow.store.workflows.get_run(RUN)
    found = await explain_node(flow.controller, run, await flow.node("each"))
    said = [(line.code, line.message) for line in found.lines]
    assert said[0] == ("calls", "0 of 2 calls have ended")
    text = "call 0: no live host that serves queue cpu lists app mytasks"
    assert said[1] == ("no_host_lists_app", text)
