"""Calls over the wire: submitted, handed out, ended, awaited, cancelled, retried, explained."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from holdfast.client import AsyncClient
from holdfast.client.methods.calls import make_set_id
from holdfast.controller.calls import call_poll, outputs
from holdfast.controller.runtime.calls import slots
from holdfast.controller.server import RunningServer, bind_socket
from holdfast.core.calls import executor_exit
from holdfast.core.calls.marks import make_mark
from holdfast.core.calls.values import FunctionSpec, find_family
from holdfast.core.facts import TaskFacts
from holdfast.core.gpus import Gpu
from holdfast.core.ids import TaskKey
from holdfast.core.workflows.values import CallWork, NodeSpec, WorkflowSpec
from holdfast.errors import ValidationError
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.calls import (
    Batch,
    BatchEnds,
    CallEnd,
    CallsAnswer,
    Closing,
    ExecutorAnswer,
    ExecutorReport,
    ModelLoad,
)
from tests.simulated.blobs import MemoryBlobs
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served, bearer
from tests.waits import within

SPEC = FunctionSpec(function="mytasks:double", stall_timeout_seconds=7.0)


class FakeExecutor:
    """An executor's half of the wire, and its agent's, driven by hand."""

    def __init__(self, agent: FakeAgent, order: LaunchOrder) -> None:
        self.agent = agent
        self.order = order
        self.key = order.key
        self.seq = 0

    async def post(self, *reports: Any, wait: float = 0.0) -> httpx.Response:
        self.seq += 1
        request = {
            "incarnation": self.agent.incarnation,
            "seq": self.seq,
            "wait_seconds": wait,
            "executors": list(reports),
        }
        return await self.agent.served.http.post(
            "/v1/agent/calls",
            content=msgspec.msgpack.encode(request),
            headers=bearer(self.agent.key),
        )

    async def say(self, wait: float = 0.0, **fields: Any) -> ExecutorAnswer:
        report = ExecutorReport(key=fields.pop("key", self.key), **fields)
        answer = await self.post(report, wait=wait)
        assert answer.status_code == 200, answer.text
        (found,) = msgspec.msgpack.decode(answer.content, type=CallsAnswer).executors
        return found

    async def take(self, want: int = 100, **fields: Any) -> Batch:
        (batch,) = (await self.say(want=want, **fields)).batches
        return batch

    async def run(self, batch: Batch, **fields: Any) -> ExecutorAnswer:
        return await self.say(ends=[results(batch)], **fields)

    async def beat(self) -> None:
        await self.agent.sync(self.agent.running(self.order))


def results(batch: Batch) -> BatchEnds:
    """The ends of a batch whose function doubles its argument."""
    ends = []
    for position, call in enumerate(batch.calls):
        value = str(2 * msgspec.json.decode(call.args)["x"])
        ends.append(CallEnd(position=position, error=False, seconds=0.01, value=value))
    return BatchEnds(batch=batch.id, ends=ends)


def raised(batch: Batch, position: int = 0) -> BatchEnds:
    value = '{"kind": "ValueError", "message": "no", "traceback": "Traceback\\nValueError: no"}'
    end = CallEnd(position=position, error=True, seconds=0.01, value=value)
    return BatchEnds(batch=batch.id, ends=[end])


def args(*numbers: int) -> list[str]:
    return [f'{{"x": {number}}}' for number in numbers]


@pytest.fixture
async def agent(served: Served) -> FakeAgent:
    made = FakeAgent(served, labels={"app/mytasks": "yes"})
    answer = await made.register()
    assert answer.status_code == 200, answer.text
    return made


@pytest.fixture
async def client(served: Served) -> Any:
    async with AsyncClient(served.url, SECRETS["submit"]) as made:
        yield made


async def start(agent: FakeAgent) -> FakeExecutor:
    order = await agent.take()
    executor = FakeExecutor(agent, order)
    await executor.beat()
    return executor


async def test_a_call_goes_all_the_way(client: AsyncClient, agent: FakeAgent) -> None:
    made = await client.submit_calls(SPEC, args(1, 2, 3))
    assert (made.state, made.count, made.submitted) == ("open", 3, 3)
    executor = await start(agent)
    assert executor.order.executor == find_family(SPEC, "cpu").name
    assert (executor.order.app, executor.order.argv) == ("mytasks", [])
    batch = await executor.take()
    assert [call.index for call in batch.calls] == [0, 1, 2]
    (info,) = batch.sets
    assert (info.id, info.spec.function) == (made.id, "mytasks:double")
    assert info.watch.stall_timeout_seconds == 7.0
    said = await executor.run(batch)
    assert sorted(said.recorded) == [(batch.id, 0), (batch.id, 1), (batch.id, 2)]
    assert [result.value async for result in client.each_result(made.id)] == ["2", "4", "6"]
    view = await client.call_set(made.id)
    assert (view.state, view.succeeded) == ("ended", 3)
    again = await executor.run(batch)  # its answer was lost: it says so once more
    assert len(again.recorded) == 3 or again.dropped == [batch.id]
    assert (await client.call_set(made.id)).succeeded == 3


async def test_calls_with_their_code_run_on_a_host_that_lists_no_app(
    client: AsyncClient, served: Served, tmp_path: Path
) -> None:
    bare = FakeAgent(served, "bare", labels={})
    await bare.register()
    (tmp_path / "mytasks.py").write_text("def double(x): return 2 * x\n")
    code = await client.send_code(tmp_path)
    made = await client.submit_calls(msgspec.structs.replace(SPEC, code=code), args(1))
    executor = await start(bare)
    assert executor.order.app == "mytasks"
    assert executor.order.code == code
    await executor.run(await executor.take())
    assert (await client.call_set(made.id)).succeeded == 1


async def test_no_call_names_the_code_of_another_project(
    client: AsyncClient, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "mytasks.py").write_text("def double(x): return 2 * x\n")
    code = await client.send_code(tmp_path)
    await served.store.settings.put_project("film", {})
    theirs = msgspec.structs.replace(SPEC, project="film", code=code)
    with pytest.raises(ValidationError, match="project film holds no bundle") as refused:
        await client.submit_calls(theirs, args(1))
    assert (refused.value.code, refused.value.field) == ("no_bundle", "spec.code.digest")
    node = NodeSpec(name="n", call=CallWork(spec=theirs))
    with pytest.raises(ValidationError, match="project film holds no bundle") as refused:
        await client.submit_workflow(WorkflowSpec(name="flow", nodes=[node]))
    assert refused.value.field == "nodes[0].call.spec.code.digest"


async def test_a_call_runs_on_the_hosts_it_chooses(client: AsyncClient, served: Served) -> None:
    racks = {rack: {"app/mytasks": "yes", "rack": rack} for rack in ("b11", "b12")}
    agents = {rack: FakeAgent(served, rack, labels=labels) for rack, labels in racks.items()}
    for each in agents.values():
        await each.register()
    for rack, wanted in (("b11", "b11"), ("b11", "!b12"), ("b12", "!b11")):
        spec = msgspec.structs.replace(SPEC, host_labels={"rack": wanted})
        made = await client.submit_calls(spec, args(1))
        executor = await start(agents[rack])
        batch = await executor.take()
        assert batch.sets[0].id == made.id
        assert batch.sets[0].spec == SPEC, "an older host would not know the field"
        await executor.run(batch)
        await agents[rack].end(executor.order, exit_code=0)


async def test_apps_are_no_labels_of_a_function(client: AsyncClient) -> None:
    spec = msgspec.structs.replace(SPEC, host_labels={"app/films": "yes"})
    with pytest.raises(ValidationError, match=r"spec\.app names the app") as refused:
        await client.submit_calls(spec, args(1))
    assert refused.value.field == "spec.host_labels"


async def test_a_model_waits_for_an_executor_with_the_memory(
    client: AsyncClient, served: Served
) -> None:
    gpu = Gpu(index=0, memory_bytes=40 << 30)
    agent = FakeAgent(served, gpus=[gpu], labels={"app/mytasks": "yes"})
    await agent.register()
    large = msgspec.structs.replace(SPEC, gpus=1, model="qwen", vram_gb=28.0)
    small = msgspec.structs.replace(SPEC, gpus=1, model="tiny", vram_gb=2.0)
    waits = await client.submit_calls(large, args(1))
    fits = await client.submit_calls(small, args(2))
    executor = await start(agent)
    batch = await executor.take(free_gb=20.25)
    assert batch.sets[0].id == fits.id
    await executor.run(batch, loaded="tiny")
    assert (await executor.say(want=5, loaded="tiny", free_gb=20.25)).batches == []
    first = (await client.call_view(waits.id, 0)).why[0]
    assert first.code == "model_waits_for_memory"
    assert first.message == (
        "it waits for the memory of model qwen (28 GB): what other processes leave on the GPU of "
        f"executor {executor.key.job_id} on host h1 is 20.2 GB"
    )
    batch = await executor.take(free_gb=30.0, loaded="tiny")
    assert batch.sets[0].id == waits.id


async def test_an_executor_that_waits_is_woken_by_new_calls(
    client: AsyncClient, agent: FakeAgent
) -> None:
    first = await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    await executor.run(await executor.take())
    waiting = asyncio.create_task(executor.say(wait=20.0, want=5))
    while not agent.served.controller.wakes.waiting_polls:
        await asyncio.sleep(0.01)
    await client.submit_calls(SPEC, args(7))
    async with within(10):
        (batch,) = (await waiting).batches
    assert batch.calls[0].args == '{"x": 7}'
    assert first.id != batch.sets[0].id


async def test_calls_that_wake_an_executor_wait_for_no_other_read(
    client: AsyncClient, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the settings nor the wanted slots are read between the wake and the batch, and the loop
    that starts executors looks later."""
    await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    await executor.run(await executor.take())
    controller = agent.served.controller
    waiting = asyncio.create_task(executor.say(wait=20.0, want=5))
    while not controller.wakes.waiting_polls:
        await asyncio.sleep(0.01)

    async def never() -> None:
        raise AssertionError("this was not to be asked")

    monkeypatch.setattr(controller.settings, "current", never)
    monkeypatch.setattr(controller.calls.slots, "refresh", never)
    monkeypatch.setattr(controller.calls.slots, "refresh_jobs", never)
    now: list[str] = []
    soon: list[str] = []
    poke = controller.poke
    monkeypatch.setattr(controller, "poke", lambda *topics: (now.extend(topics), poke(*topics)))
    monkeypatch.setattr(controller, "poke_soon", lambda *topics, seconds: soon.extend(topics))
    await client.submit_calls(SPEC, args(7))
    async with within(10):
        (batch,) = (await waiting).batches
    assert batch.calls[0].args == '{"x": 7}'
    assert ("executors" in now, soon) == (False, ["executors"])


async def test_ends_wait_for_no_other_read(
    client: AsyncClient, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for a slot is read behind them, and no policy is needed for a result."""
    made = await client.submit_calls(SPEC, args(5, 6))
    executor = await start(agent)
    batch = await executor.take()
    controller, behind = agent.served.controller, list[bool]()

    async def never() -> None:
        raise AssertionError("this was not to be asked")

    monkeypatch.setattr(controller.settings, "current", never)
    monkeypatch.setattr(controller.calls.slots, "refresh", never)
    monkeypatch.setattr(controller.calls.slots, "refresh_jobs", never)
    monkeypatch.setattr(
        controller.calls.slots, "refresh_behind", lambda _, *, jobs: behind.append(jobs)
    )
    ends = [BatchEnds(batch.id, [CallEnd(0, False, 0.01, "7")])]
    answer = await executor.say(want=5, held=[batch.id], ends=ends)
    assert answer.recorded == [(batch.id, 0)]
    assert len(behind) == 1
    assert [r.value for r in (await client.call_results(made.id)).results] == ["7"]


async def test_a_result_is_waited_for(client: AsyncClient, agent: FakeAgent) -> None:
    made = await client.submit_calls(SPEC, args(5, 6))
    executor = await start(agent)
    batch = await executor.take()
    waiting = asyncio.create_task(client.call_results(made.id, wait_seconds=20))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await executor.run(batch)
    async with within(10):
        found = await waiting
    assert [(r.index, r.value) for r in found.results] == [(0, "10"), (1, "12")]
    assert (found.ended, found.next) == (True, 2)
    some = await client.call_results(made.id, indices=[1])
    assert ([r.index for r in some.results], some.ended) == ([1], True)


async def test_a_newer_call_of_the_host_answers_the_older(agent: FakeAgent, client: Any) -> None:
    await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    await executor.run(await executor.take())
    older = asyncio.create_task(executor.say(wait=20.0, want=1))
    while not agent.served.controller.wakes.waiting_polls:
        await asyncio.sleep(0.01)
    await executor.say(want=0)
    async with within(5):
        assert (await older).batches == []


async def test_one_report_that_cannot_be_read_holds_up_no_other(
    client: AsyncClient, agent: FakeAgent
) -> None:
    await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    good = ExecutorReport(key=executor.key, want=1)
    answer = await executor.post({"key": "nonsense"}, good)
    found = msgspec.msgpack.decode(answer.content, type=CallsAnswer)
    assert [one.key for one in found.executors] == [executor.key]
    assert len(found.executors[0].batches) == 1
    assert found.unread[0].startswith("executors[0]: ")


async def test_what_is_no_executor_of_this_host_is_told_to_stop(
    client: AsyncClient, agent: FakeAgent, served: Served
) -> None:
    job = await served.submit()
    executor = FakeExecutor(agent, await agent.take())
    assert executor.key.job_id == job["id"]
    assert (await executor.say(want=1)).lost
    assert (await executor.say(key=TaskKey("0" * 20, 0, 1), want=1)).lost


async def test_a_body_that_is_nothing_is_refused(agent: FakeAgent, served: Served) -> None:
    headers = bearer(agent.key)
    for content in (b"", b"\xc1", msgspec.msgpack.encode({"incarnation": "short"})):
        answer = await served.http.post("/v1/agent/calls", content=content, headers=headers)
        assert answer.status_code in (400, 422), answer.text
    answer = await served.http.post("/v1/agent/calls", headers=bearer(SECRETS["admin"]))
    assert answer.status_code == 401


async def test_a_nul_in_a_result_ends_its_call(client: AsyncClient, agent: FakeAgent) -> None:
    made = await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    batch = await executor.take()
    ends = [CallEnd(position=0, error=False, seconds=0.0, value='"a\x00b"')]
    await executor.say(ends=[BatchEnds(batch=batch.id, ends=ends)])
    (result,) = (await client.call_results(made.id)).results
    assert result.value == '"a�b"'


async def test_an_exception_is_retried_by_the_policy_and_shows_its_chain(
    client: AsyncClient, agent: FakeAgent
) -> None:
    spec = msgspec.convert(
        {"function": "mytasks:f", "retry": {"max_retries": 1, "retry_delay": 0.05}}, FunctionSpec
    )
    made = await client.submit_calls(spec, args(1))
    executor = await start(agent)
    await executor.say(ends=[raised(await executor.take())])
    async with within(20):
        while not (again := (await executor.say(want=1, wait=5.0)).batches):
            pass
    assert again[0].calls[0].attempt == 2
    await executor.say(ends=[raised(again[0])])
    call = await client.call_view(made.id, 0)
    assert (call.state, call.attempts) == ("failed", 2)
    assert [(f.attempt, f.host) for f in call.failures] == [(1, "h1"), (2, "h1")]
    assert "ValueError: no" in call.failures[0].reason
    assert "ValueError" in call.value
    assert call.why[0].code == "ended"
    failed = await client.call_results(made.id, states=["failed"])
    assert [r.index for r in failed.results] == [0]
    revived = await client.retry_calls(made.id)
    assert (revived.failed, revived.state) == (0, "open")


async def test_a_closing_report_gives_the_others_back(
    client: AsyncClient, agent: FakeAgent
) -> None:
    made = await client.submit_calls(SPEC, args(1, 2, 3))
    executor = await start(agent)
    batch = await executor.take()
    crashed = Closing(batch=batch.id, position=0, facts=TaskFacts(signal=9))
    await executor.say(closing=crashed)
    await agent.end(executor.order, signal=9)
    call = await client.call_view(made.id, 0)
    assert len(call.failures) == 1
    other = await start(agent)  # calls that are ready again start another executor
    assert other.key.job_id != executor.key.job_id
    again = await other.take()
    assert [call.index for call in again.calls if call.index] == [1, 2]
    assert (await client.call_view(made.id, 1)).attempts <= 1


async def test_a_request_that_comes_after_its_executors_last_report_takes_nothing(
    client: AsyncClient, agent: FakeAgent
) -> None:
    """OVERLAP-3: the agent made it before, and had two on their way."""
    made = await client.submit_calls(SPEC, args(1, 2, 3))
    executor = await start(agent)
    batch = await executor.take()
    executor.seq += 1
    await executor.say(closing=Closing(batch=batch.id, position=0, facts=TaskFacts(signal=9)))
    executor.seq -= 2
    assert (await executor.say(held=[batch.id], want=100)).batches == []
    ready = [await client.call_view(made.id, index) for index in (1, 2)]
    assert [(call.state, call.attempts) for call in ready] == [("ready", 0)] * 2


async def test_cancel_ends_what_waits_and_asks_what_runs(
    client: AsyncClient, agent: FakeAgent
) -> None:
    made = await client.submit_calls(SPEC, args(1, 2, 3))
    executor = await start(agent)
    batch = await executor.take(want=1)
    waiting = asyncio.create_task(executor.say(wait=20.0, held=[batch.id]))
    while not agent.served.controller.wakes.waiting_polls:
        await asyncio.sleep(0.01)
    view = await client.cancel_calls(made.id, reason="not needed")
    assert view.cancelled == 2
    async with within(10):
        assert (await waiting).cancelled == [(batch.id, 0)]
    told = await executor.say(held=[batch.id], wait=0.2)  # said again, but not at once
    assert told.cancelled == [(batch.id, 0)]
    async with within(10):  # to the next agent it is news
        assert (await executor.say(held=[batch.id], wait=20.0, fresh=True)).cancelled
    (result,) = (await client.call_results(made.id, indices=[1])).results
    assert (result.state, result.reason) == (3, "not needed")


async def test_why_names_the_app_that_no_host_lists(client: AsyncClient, agent: FakeAgent) -> None:
    made = await client.submit_calls(FunctionSpec(function="other:f"), args(1))
    call = await client.call_view(made.id, 0)
    assert call.state == "ready"
    assert [(line.code, line.hint) for line in call.why] == [
        ("no_host_lists_app", "start one: holdfast agent --app other")
    ]


async def test_a_repeat_changes_nothing_and_another_spec_is_refused(
    client: AsyncClient, served: Served
) -> None:
    set_id = make_set_id()
    for _ in range(2):
        made = await client.create_call_set(SPEC, args(1, 2), set_id=set_id)
        assert (made.submitted, made.count) == (2, None)
    for _ in range(2):
        grown = await client.append_calls(set_id, 2, args(3), count=3)
        assert (grown.submitted, grown.count) == (3, 3)
    other = {"id": set_id, "spec": {"function": "mytasks:other"}}
    assert (await served.call("POST", "/v1/call-sets", json=other)).status_code == 409
    more = await served.call(
        "POST", f"/v1/call-sets/{set_id}/calls", json={"first": 3, "args": ["{}"]}
    )
    assert more.status_code == 409
    assert [view.id async for view in client.call_sets()] == [set_id]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"id": "short"}, "id"),
        ({"args": ["{"]}, "args[0]"),
        ({"args": ["{}", '"' + "x" * 300_000 + '"']}, "args[1]"),
        ({"args": ["{}", "{}"], "count": 1}, "args"),
        ({"spec": {"function": "nothing"}}, "spec.function"),
        ({"spec": {"function": "m:f", "queue": "nowhere"}}, "spec.queue"),
        ({"spec": {"function": "m:f", "vram_gb": 4.0}}, "spec.vram_gb"),
        ({"spec": {"function": "m:f", "retry": {"eligible_causes": ["user_cancelled"]}}}, "retry.eligible_causes"),
    ],
)  # fmt: skip
async def test_a_bad_set_is_refused_with_its_field(
    served: Served, fields: dict[str, Any], field: str
) -> None:
    body = {"id": make_set_id(), "spec": {"function": "mytasks:f"}, **fields}
    answer = await served.call("POST", "/v1/call-sets", json=body)
    assert answer.status_code == 422, answer.text
    assert answer.json()["field"] == field


async def test_roles_and_names_that_are_none(served: Served) -> None:
    body = {"id": make_set_id(), "spec": {"function": "m:f"}}
    assert (await served.call("POST", "/v1/call-sets", "read", json=body)).status_code == 403
    unknown = "0" * 20
    for path in ("", "/results", "/calls/0"):
        for name in (unknown, "x"):
            answer = await served.call("GET", f"/v1/call-sets/{name}{path}")
            assert answer.status_code == 404, answer.text
    made = (await served.call("POST", "/v1/call-sets", json=body)).json()
    for index in ("0", "x", "9" * 12):
        answer = await served.call("GET", f"/v1/call-sets/{made['id']}/calls/{index}")
        assert answer.status_code == 404, answer.text
    bad = await served.call("GET", f"/v1/call-sets/{made['id']}/results?state=pending")
    assert bad.status_code == 422


async def test_executors_are_hidden_among_jobs_and_refused_from_users(
    client: AsyncClient, served: Served, agent: FakeAgent
) -> None:
    await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    assert [job async for job in client.jobs()] == []
    (shown,) = [job async for job in client.jobs(executors="only")]
    assert shown.id == executor.key.job_id
    refused = await served.call("POST", "/v1/jobs", json={"executor": "mine"})
    assert refused.status_code == 422
    assert refused.json()["field"] == "executor"


async def test_metrics_and_models_tell_what_executors_said(
    client: AsyncClient, served: Served, agent: FakeAgent
) -> None:
    spec = FunctionSpec(function="mytasks:f", model="qwen")
    made = await client.submit_calls(spec, args(1, 2))
    executor = await start(agent)
    cold = await executor.take(want=1)
    gauge = f'{{family="{find_family(SPEC, "cpu").name}",model="qwen",queue="cpu"}}'
    assert f"holdfast_calls_running{gauge} 1.0" in (await served.call("GET", "/metrics")).text
    assert (await client.call_set(made.id)).running
    await executor.run(cold, loaded="qwen", loads=[ModelLoad("qwen", 12.0)], mean_seconds=0.5)
    warm = await executor.take(want=1, loaded="qwen")
    await executor.run(warm, loaded="qwen")
    page = (await served.call("GET", "/metrics")).text
    for line in (
        f'holdfast_calls_ended_total{{end="result",family="{find_family(SPEC, "cpu").name}"}} 2.0',
        'holdfast_call_batches_total{model="qwen",warm="no"} 1.0',
        'holdfast_call_batches_total{model="qwen",warm="yes"} 1.0',
        'holdfast_model_load_seconds_sum{model="qwen"} 12.0',
    ):
        assert line in page
    (host,) = (await served.call("GET", "/v1/hosts")).json()["items"]
    assert host["models"] == ["qwen"]
    assert (await client.call_set(made.id)).state == "ended"


async def test_the_client_refuses_a_set_that_is_none(client: AsyncClient) -> None:
    with pytest.raises(ValidationError):
        await client.create_call_set(SPEC, ["["])


async def test_an_idle_executor_gives_its_slot_to_another_family(
    client: AsyncClient, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor_exit, "IDLE_YIELD_SECONDS", -1.0)
    monkeypatch.setattr(slots, "FRESH_SECONDS", 0.0)
    monkeypatch.setattr(call_poll, "LOOK_SECONDS", 0.05)
    small = FakeAgent(served, "small", cpu_slots=1, labels={"app/mytasks": "yes"})
    await small.register()
    await client.submit_calls(SPEC, args(1))
    executor = await start(small)
    await executor.run(await executor.take())
    assert not (await executor.say(want=1)).leave
    waiting = asyncio.create_task(executor.say(want=1, wait=20.0))
    other = FunctionSpec(function="mytasks:g", memory_bytes=1 << 20)
    await client.submit_calls(other, args(2))
    async with within(15):
        assert (await waiting).leave
    again = await executor.say(want=1, wait=0.1)  # said again, but not at once
    assert again.leave
    await small.end(executor.order, exit_code=0)
    assert (await start(small)).order.executor == find_family(other, "cpu").name


async def test_a_batch_on_its_way_is_not_sent_twice(
    client: AsyncClient, agent: FakeAgent, served: Served
) -> None:
    """A request that came before the batch was handed out cannot name it, and needs it no more."""
    await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    await executor.run(await executor.take())
    waiting = asyncio.create_task(executor.say(want=5, wait=20.0))
    while not served.controller.wakes.waiting_polls:
        await asyncio.sleep(0.01)
    handed: list[list[int]] = []
    given = served.store.calls.exchange

    asked, go_on = asyncio.Event(), asyncio.Event()

    async def slowly(*turns: Any, **more: Any) -> Any:
        asked.set()
        await go_on.wait()
        answers = await given(*turns, **more)
        handed.append([len(answer.batches) for answer in answers])
        return answers

    served.store.calls.exchange = slowly  # type: ignore[method-assign]  # a slow database
    await client.submit_calls(SPEC, args(7))
    async with within(10):
        await asked.wait()
        second = asyncio.create_task(executor.say(want=5, ends=[]))
        for _ in range(
            50
        ):  # it comes meanwhile: both ends are in this loop, and a few turns of it do
            await asyncio.sleep(0.004)
        go_on.set()
        answers = await asyncio.gather(waiting, second)
        assert sorted(len(answer.batches) for answer in answers) == [0, 1]
        lost = await executor.say(want=0)  # it has not named the batch: the answer was lost
    assert len(lost.batches) == 1


@pytest.mark.parametrize("away", [True, False])
async def test_a_reader_waits_for_what_an_agent_could_not_send(
    client: AsyncClient, agent: FakeAgent, served: Served, away: bool, monkeypatch: Any
) -> None:
    """OUTPUT-2: the server that hears of the end is one that began meanwhile, so the last bytes come
    when the agent tries again. One that heard of the executor before has them within a second."""
    made = await client.submit_calls(SPEC, args(1))
    executor = await start(agent)
    batch = await executor.take()
    first = make_mark(made.id, 0, 1).encode() + b"first\n"
    await agent.send_log(executor.key, first)
    running = RunningServer(served.store, bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())
    await running.start()
    agent.served = new = Served(running, served.store)
    if not away:
        await executor.say(held=[batch.id])
    controller, late = running.controller, outputs.LATE_SECONDS + 1
    began = controller.clock()
    await executor.run(batch)
    ended_at = (await served.store.calls.read_call(made.id, 0)).ended_at
    assert ended_at is not None
    controller.began_at = began - 5
    clock, times = [began + late], [ended_at + timedelta(seconds=late)]

    async def now() -> datetime:
        return times[-1]

    monkeypatch.setattr(served.store, "now", now)
    monkeypatch.setattr(controller, "clock", lambda: clock[-1])
    heard = []
    async with within(30), AsyncClient(new.url, SECRETS["submit"]) as reader:
        async for line in reader.call_logs(made.id, 0, follow=True, stream="stdout"):
            heard.append(line.data)
            if line.data == b"first\n" and away:
                await agent.send_log(executor.key, b"last\n", offset=len(first))
            elif line.data == b"last\n":
                times.append(ended_at + timedelta(hours=1))
                clock.append(controller.began_at + 3600)
    assert heard == [b"first\n", b"last\n"][: 1 + away]
    await new.http.aclose()
    await running.stop()
