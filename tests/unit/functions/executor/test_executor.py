"""A real executor, told what to do by a scripted agent over its real socket."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.core.calls.batches import choose_want
from holdfast.core.calls.large import LargeValue, write_arguments
from holdfast.functions.executor.held_batches import HeldBatches
from holdfast.wire.calls import (
    PHASE_CALLING,
    PHASE_IDLE,
    AgentFrame,
    Batch,
    BlobDone,
    CallEnd,
    CallOrder,
    CallSave,
    ModelLimits,
    ModelLoad,
    SaveDone,
)
from tests.unit.functions.executor.scripted_agent import ScriptedAgent, error_of
from tests.waits import wait_until

Start = Callable[..., ScriptedAgent]

APP = """
import asyncio, os, sys, time
from pathlib import Path

loads = []

@holdfast.task
def double(n: int) -> int:
    return 2 * n

@holdfast.task
async def later(n: int) -> int:
    await asyncio.sleep(0)
    return n + 1

@holdfast.task
def fail(how: str) -> int:
    if how == "exit":
        sys.exit(3)
    if how == "result":
        return "text"
    raise ValueError("bad " + how)

@holdfast.task
def hold(path: str) -> str:
    ctx = holdfast.context()
    Path(path).touch()
    while Path(path).exists() and not ctx.cancelled:
        time.sleep(0.01)
    if ctx.cancelled:
        raise RuntimeError(f"was told to end: {ctx.cancel_reason}")
    return f"{ctx.id} {ctx.attempt} {ctx.out_dir}"

@holdfast.task
def about(n: int, *, ctx=None) -> str:
    return f"{n} {ctx.id}"

@holdfast.task
def go_on(ctx=None) -> str:
    before = ctx.checkpoint.load()
    ctx.checkpoint.save(b"half")
    return repr(before)

@holdfast.task
def keep(ctx=None) -> str:
    ctx.checkpoint.save(b"half")
    return "kept on"

@holdfast.task
def talk(word: str) -> None:
    print(word)
    print(word, file=sys.stderr)

@holdfast.task
def long_text(n: int, text: str = "") -> str:
    return n * "x" + text[:1]

@holdfast.model("a", time_limit=5)
def model_a():
    loads.append("a")
    return "A"

@holdfast.model("b", stall="off")
def model_b():
    loads.append("b")
    return "B"

@model_a.unloader
def unload_a(value):
    loads.append("-" + value)

@holdfast.task(model=model_a)
def with_a() -> list[str]:
    return [model_a(), *loads]

@holdfast.task(model="b")
def with_b() -> list[str]:
    return [model_b(), *loads]

def plain() -> None: ...
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    agents: list[ScriptedAgent] = []

    def begin(app: str = APP, *, wants: bool = True, **limits: Any) -> ScriptedAgent:
        agent = ScriptedAgent(tmp_path, app, limits)
        agents.append(agent)
        hello = agent.accept()
        if wants and not hello.want:
            agent.hear(lambda frame: frame.want == 1)
        return agent

    yield begin
    for agent in agents:
        agent.close()


def values(ends: list[Any]) -> list[Any]:
    return [json.loads(end.value) for end in ends]


def test_calls_run_and_the_next_batch_grows_with_how_short_they_are(start: Start) -> None:
    agent = start()
    assert values(agent.run(1, ("double", {"n": 3}))) == [6]
    assert values(agent.run(2, ("double", {"n": 1}), ("later", {"n": 1}))) == [2, 2]
    frame = agent.heard[-1]
    assert frame.mean_seconds > 0
    assert frame.want == choose_want(frame.mean_seconds, 0, 0)
    wait_until(lambda: agent.place()[2:] == (PHASE_IDLE, 3))


def test_a_parameter_ctx_gets_the_context(start: Start) -> None:
    agent = start()
    assert values(agent.run(1, ("about", {"n": 3}))) == ["3 set0.0"]
    [refused] = agent.run(2, ("about", {"n": 3, "ctx": 1}))
    assert "there is no field 'ctx'" in error_of(refused).message


def test_what_goes_wrong_is_told_with_its_kind_and_goes_on(start: Start) -> None:
    agent = start()
    ends = agent.run(
        1,
        ("fail", {"how": "luck"}),
        ("fail", {"how": "exit"}),
        ("fail", {"how": "result"}),
        ("fail", {"how": 3}),
        ("plain", {}),
        ("absent", {}),
        ("double", {"n": 2}),
    )
    raised, left, wrong, unfit, plain, absent = (error_of(end) for end in ends[:6])
    assert (raised.kind, raised.message, raised.invalid) == ("ValueError", "bad luck", False)
    assert 'raise ValueError("bad " + how)' in raised.traceback
    assert "runner.py" not in raised.traceback
    assert (left.kind, left.message, left.invalid) == ("SystemExit", "3", False)
    assert (wrong.invalid, unfit.invalid, plain.invalid, absent.invalid) == (True,) * 4
    assert "the result of pages:fail: must be a whole number" in wrong.message
    assert "argument 'how' of pages:fail: must be text" in unfit.message
    assert "has no task 'plain': it is a function" in plain.message
    assert "has no task 'absent': there is none" in absent.message
    assert json.loads(ends[6].value) == 4


def test_a_module_that_cannot_be_imported_is_named_with_its_host(start: Start) -> None:
    agent = start("import no_such_package\n")
    [end] = agent.run(1, ("double", {"n": 3}))
    error = error_of(end)
    assert error.invalid
    assert error.message.startswith(
        "module pages cannot be imported on host box: ModuleNotFoundError: No module named "
        f"'no_such_package' (looked in {agent.folder}"
    )


def test_an_end_is_kept_until_it_is_on_record_over_agents_that_die(start: Start) -> None:
    """INHAND-1."""
    agent = start()
    agent.say(batches=[agent.batch(7, ("double", {"n": 1}), ("double", {"n": 2}))])
    agent.hear(lambda frame: len(agent.ends) == 2, record=False)
    agent.hang_up()
    agent.ends.clear()
    hello = agent.accept(record=False)
    assert (hello.held, [b.id for b in hello.batches]) == ([7], [7])
    assert [call.args for call in hello.batches[0].calls] == ["", ""]
    assert agent.ends.keys() == {(7, 0), (7, 1)}
    agent.say(batches=[agent.batch(7, ("double", {"n": 1}), ("double", {"n": 2}))])  # sent again
    agent.say(recorded=[(7, 0), (7, 1)])
    agent.hang_up()
    assert agent.accept().held == []
    assert agent.place()[3] == 2  # nothing ran twice


def test_an_end_is_told_while_the_next_call_still_runs(start: Start) -> None:
    """LINE-2."""
    agent = start()
    flag = agent.folder / "flag"
    agent.say(batches=[agent.batch(1, ("double", {"n": 4}), ("hold", {"path": str(flag)}))])
    agent.hear(lambda frame: (1, 0) in agent.ends)
    wait_until(flag.exists)
    assert agent.place() == (1, 1, PHASE_CALLING, 2)
    flag.unlink()
    agent.hear(lambda frame: (1, 1) in agent.ends)
    call, attempt, folder = json.loads(agent.ends[1, 1].value).split()
    assert (call, attempt) == ("set1.1", "1")
    assert Path(folder) == agent.folder / "files" / "set1" / "1"
    assert Path(folder).is_dir()


def test_a_cancelled_call_sees_it_and_one_that_waits_never_begins(start: Start) -> None:
    agent = start()
    flag = agent.folder / "flag"
    calls = [("hold", {"path": str(flag)}), ("double", {"n": 1}), ("double", {"n": 2})]
    agent.say(batches=[agent.batch(1, *calls)])
    wait_until(flag.exists)
    agent.say(cancelled=[(1, 1), (1, 0)], cancel_reasons=["not needed", "wrong input"])
    agent.hear(lambda frame: len(agent.ends) == 3)
    assert error_of(agent.ends[1, 0]).message == "was told to end: wrong input"
    assert error_of(agent.ends[1, 1]).message == "it was cancelled before it began: not needed"
    assert json.loads(agent.ends[1, 2].value) == 4
    assert agent.place()[3] == 2


def test_a_call_that_is_cancelled_while_its_model_loads_never_begins(start: Start) -> None:
    agent = start(
        "import time\nfrom pathlib import Path\n"
        "@holdfast.model('slow')\ndef slow():\n"
        "    Path('loading').touch()\n"
        "    while Path('loading').exists():\n        time.sleep(0.01)\n"
        "@holdfast.task(model=slow)\ndef use() -> None:\n    Path('began').touch()\n"
    )
    agent.say(batches=[agent.batch(1, ("use", {}), ("use", {}), model="slow")])
    wait_until((agent.folder / "loading").exists)
    agent.say(cancelled=[(1, 0), (1, 1)], cancel_reasons=["no more", "no more"])
    agent.hang_up()
    agent.accept()  # it calls again after it has heard all of that
    (agent.folder / "loading").unlink()
    agent.hear(lambda frame: len(agent.ends) == 2)
    assert {error_of(end).message for end in agent.ends.values()} == {
        "it was cancelled before it began: no more"
    }
    assert not (agent.folder / "began").exists()


def test_a_dropped_batch_is_dropped_without_a_word(start: Start) -> None:
    agent = start()
    flag = agent.folder / "flag"
    agent.say(batches=[agent.batch(1, ("hold", {"path": str(flag)}), ("double", {"n": 1}))])
    wait_until(flag.exists)
    agent.say(dropped=[1])
    assert values(agent.run(2, ("double", {"n": 5}))) == [10]
    assert agent.ends.keys() == {(2, 0)}
    assert agent.place()[3] == 2


def test_output_is_told_apart(start: Start) -> None:
    agent = start()
    agent.run(1, ("talk", {"word": "one"}), ("double", {"n": 1}), ("talk", {"word": "two"}))
    expected = "[holdfast] call set0.0 attempt 1\none\n[holdfast] call set0.2 attempt 1\ntwo\n"
    assert (agent.read("stdout"), agent.read("stderr")) == (expected, expected)


def test_models_swap_and_their_loading_is_told(start: Start) -> None:
    agent = start()
    limits = {"a": ModelLimits(load_seconds=5.0), "b": ModelLimits(stall_seconds=0.0)}
    assert agent.heard[-1].models == limits
    assert values(agent.run(1, ("with_a", {}), ("with_a", {}), model="a")) == [["A", "a"]] * 2
    assert agent.heard[-1].loaded == "a"
    assert values(agent.run(2, ("with_b", {}), model="b")) == [["B", "a", "-A", "b"]]
    loads = [load for frame in agent.heard for load in frame.loads]
    assert [load.model for load in loads] == ["a", "b"]
    assert all(isinstance(load, ModelLoad) for load in loads)
    [end] = agent.run(3, ("with_b", {}), model="c")
    assert "no model 'c' is declared" in error_of(end).message


def test_an_idle_model_is_unloaded_and_an_idle_executor_ends(start: Start) -> None:
    agent = start(model_idle_seconds=0.2, idle_seconds=1.0)
    agent.run(1, ("with_a", {}), model="a")
    if agent.heard[-1].loaded == "a":
        agent.hear(lambda frame: frame.loaded is None)
    assert "a" in {frame.loaded for frame in agent.heard}
    assert agent.process.poll() is None
    assert agent.wait() == 0


def test_it_leaves_when_it_is_idle(start: Start) -> None:
    agent = start()
    flag = agent.folder / "flag"
    calls = [("hold", {"path": str(flag)}), ("double", {"n": 1})]
    agent.say(batches=[agent.batch(1, *calls)], leave=True)
    wait_until(flag.exists)
    flag.unlink()
    assert agent.wait() == 0
    assert agent.ends.keys() == {(1, 0), (1, 1)}


def test_it_is_replaced_after_its_number_of_calls(start: Start) -> None:
    agent = start(calls=2)
    agent.say(batches=[agent.batch(1, *[("double", {"n": n}) for n in range(4)])])
    assert agent.wait() == 0
    assert agent.ends.keys() == {(1, 0), (1, 1)}


def test_it_is_replaced_when_its_module_was_changed(start: Start) -> None:
    agent = start()
    os.utime(agent.folder / "pages.py", ns=(1, 1))
    agent.say(batches=[agent.batch(1, ("double", {"n": 2}))])
    assert agent.wait() == 0
    assert agent.ends == {}


def test_it_is_replaced_when_it_holds_too_much(start: Start) -> None:
    agent = start(wants=False, memory_bytes=1)
    assert agent.wait() == 0


@pytest.mark.parametrize("raises", [True, False])
def test_a_stop_waits_for_the_running_call(start: Start, raises: bool) -> None:
    """EXEC-1, EXEC-2: what the stop itself made fail is not told."""
    app = (
        APP
        if raises
        else APP.replace("if ctx.cancelled:\n        raise", "if False:\n        raise")
    )
    agent = start(app)
    flag = agent.folder / "flag"
    calls = [("hold", {"path": str(flag)}), ("double", {"n": 1})]
    agent.say(batches=[agent.batch(1, *calls)])
    wait_until(flag.exists)
    agent.terminate()
    assert agent.wait() == 0
    assert agent.ends.keys() == (set() if raises else {(1, 0)})


def test_a_broken_gpu_context_replaces_the_process(start: Start) -> None:
    agent = start(
        "@holdfast.task\ndef kernel() -> None:\n    raise RuntimeError('CUDA error: an illegal "
        "memory access was encountered')\n"
    )
    agent.say(batches=[agent.batch(1, ("kernel", {}), ("kernel", {}))])
    assert agent.wait() == 0
    assert agent.ends.keys() == {(1, 0)}


def test_large_values_go_through_the_agents_folder(start: Start) -> None:
    agent = start()
    agent.say(batches=[agent.batch(1, ("long_text", {"n": 300_000}))])
    [sha256] = agent.hear(lambda frame: frame.keep).keep
    assert (agent.blobs / sha256).read_text() == json.dumps(300_000 * "x")
    assert (1, 0) not in agent.ends
    agent.say(blobs=[BlobDone(sha256=sha256)])
    agent.hear(lambda frame: (1, 0) in agent.ends)
    reference = agent.ends[1, 0].value
    assert json.loads(reference) == {"$blob": sha256, "size": 300_002}

    batch = agent.batch(2, ("long_text", {}))
    call = msgspec.structs.replace(batch.calls[0], args=reference)
    batch = msgspec.structs.replace(batch, calls=[call])
    agent.say(batches=[batch])
    assert agent.hear(lambda frame: frame.fetch).fetch == [sha256]
    agent.say(blobs=[BlobDone(sha256=sha256, error="the store is away")])
    agent.hear(lambda frame: (2, 0) in agent.ends)
    error = error_of(agent.ends[2, 0])
    assert (error.kind.rpartition(".")[2], error.invalid) == ("Unavailable", False)
    assert "the store is away" in error.message


def test_a_large_value_inside_the_arguments_is_checked_like_a_small_one(start: Start) -> None:
    agent = start()
    fits, does_not = json.dumps("abc"), json.dumps([1])
    names = [hashlib.sha256(text.encode()).hexdigest() for text in (fits, does_not)]
    for name, text in zip(names, (fits, does_not), strict=True):
        (agent.blobs / name).write_text(text)
    large = [LargeValue("up", name, 300_000) for name in names]
    texts = [write_arguments({"n": 2, "text": value}) for value in large]
    batch = agent.batch(1, ("long_text", {}), ("long_text", {}))
    calls = [
        msgspec.structs.replace(call, args=text)
        for call, text in zip(batch.calls, texts, strict=True)
    ]
    agent.say(batches=[msgspec.structs.replace(batch, calls=calls)])
    for name in names:
        agent.hear(lambda frame, name=name: frame.fetch == [name])
        agent.say(blobs=[BlobDone(sha256=name)])
    agent.hear(lambda frame: (1, 1) in agent.ends)
    assert json.loads(agent.ends[1, 0].value) == "xxa"
    error = error_of(agent.ends[1, 1])
    assert error.invalid
    assert "argument 'text'" in error.message


@pytest.mark.parametrize(
    ("loaded", "saved", "end"),
    [
        ({}, {}, "None"),
        ({"found": True}, {}, "b'a quarter'"),
        ({"found": True}, {"error": "the server is away"}, "b'a quarter'"),
        ({"error": "the server is away"}, None, "Unavailable: the checkpoint of this call cannot"),
        (
            {},
            {"error": "over the limit", "refused": True},
            "ValidationError: the checkpoint is not",
        ),
    ],
)
def test_checkpoints_go_through_the_agent(
    start: Start, loaded: dict[str, Any], saved: dict[str, Any] | None, end: str
) -> None:
    agent = start()
    agent.say(batches=[agent.batch(7, ("double", {"n": 1}), ("go_on", {}))])
    [load] = agent.hear(lambda frame: frame.saves).saves
    assert load == CallSave(7, 1)
    (agent.blobs / load.file_name).write_bytes(b"a quarter")
    agent.say(saves=[SaveDone(save=load, **loaded)])
    if saved is not None:
        [save] = agent.hear(lambda frame: frame.saves).saves
        assert save == CallSave(7, 1, hashlib.sha256(b"half").hexdigest())
        assert (agent.blobs / save.file_name).read_bytes() == b"half"
        agent.hang_up()
        assert agent.accept().hello  # an agent that took over is asked again
        assert agent.hear(lambda frame: frame.saves).saves == [save]
        agent.say(saves=[SaveDone(save=save, **saved)])
    agent.hear(lambda frame: (7, 1) in agent.ends)
    told = agent.ends[7, 1]
    said = (
        f"{error_of(told).kind.rpartition('.')[2]}: {error_of(told).message}" if told.error else ""
    )
    assert (said or json.loads(told.value)).startswith(end)
    kept = "the checkpoint is not kept; the one before stays: the server is away"
    assert (kept in agent.read("stderr")) is (saved == {"error": "the server is away"})
    assert not list(agent.blobs.glob("*checkpoint-out"))


def test_a_small_batch_alone_is_nothing_to_tell_at_once() -> None:
    """Its agent knows that it handed the batch on; a request about it would only hold up the end."""
    batches = HeldBatches("0123456789abcdefghjk:0:1", 0)
    batches.open, batches.mean_seconds = True, 0.001
    hello = batches.make_hello()
    assert hello.want == 50
    calls = [CallOrder(set=0, index=at, attempt=1, args="[]") for at in range(40)]
    batches.take_frame(AgentFrame(batches=[Batch(id=1, sets=[], calls=calls[:1])]))
    assert batches.make_frame() is None
    batches.defers = False  # the line looked again
    later = batches.make_frame()
    assert later is not None
    assert (later.held, later.want) == ([1], 50)
    batches.take_frame(AgentFrame(batches=[Batch(id=2, sets=[], calls=calls[:1])]))
    held = batches.next_batch()
    assert held is not None
    batches.end_call(held, CallEnd(0, False, 0.001, "1"))
    told = batches.make_frame()
    assert told is not None
    assert (told.held, len(told.ends)) == ([1, 2], 1)
    batches.take_frame(AgentFrame(batches=[Batch(id=3, sets=[], calls=calls)]))
    asked = batches.make_frame()
    assert asked is not None, "more may wait"


BEHIND = """
import time
from holdfast.functions.running import context
@holdfast.task
def wait(path: str, call: str = "") -> str:
    with context().waiting_for(call):
        open(path, "w").close()
        while os.path.exists(path):
            time.sleep(0.01)
    return "waited"
"""


@pytest.mark.parametrize("call", ["", "other.0"])
def test_what_is_in_hand_behind_a_call_that_keeps_it_waiting_is_given_back(
    start: Start, call: str
) -> None:
    """INHAND-2: where it runs for a second, and at once where it waits for another call."""
    agent = start(APP + BEHIND)
    flag = agent.folder / "flag"
    given = {"path": str(flag)} if not call else {"path": str(flag), "call": call}
    short = ("double", {"n": 1})
    agent.say(batches=[agent.batch(1, short, ("wait", given), short), agent.batch(2, short)])
    told = agent.hear(lambda frame: frame.returned)
    assert (told.returned, told.want) == ([(1, 2), (2, 0)], 0)
    assert (told.busy, told.busy_batch) == (call or "long", 1)
    agent.say(batches=[agent.batch(3, short)])
    assert agent.hear(lambda frame: 3 in frame.held).returned == [(1, 2), (2, 0), (3, 0)]
    agent.say(dropped=[2, 3])
    wait_until(flag.exists)
    flag.unlink()
    after = agent.hear(lambda frame: (1, 1) in agent.ends)
    assert (after.busy, after.want > 0, after.held) == ("", True, [1])
    agent.say(dropped=[1])
    assert agent.hear(lambda frame: not frame.held).returned == []
    assert agent.place()[3] == 2, "nothing that was given back ran"
    assert values(agent.run(4, short)) == [2]


def test_nothing_is_given_back_to_an_agent_that_would_not_hear_it(start: Start) -> None:
    agent = start(APP + BEHIND)
    flag = agent.folder / "flag"
    waits = ("wait", {"path": str(flag), "call": "other.0"})
    agent.say(batches=[agent.batch(1, waits, ("double", {"n": 1}))])
    assert agent.hear(lambda frame: frame.busy).returned == []
    wait_until(flag.exists)
    flag.unlink()
    agent.hear(lambda frame: {(1, 0), (1, 1)} <= agent.ends.keys())


def test_a_call_that_kills_its_process_is_where_the_place_says(start: Start) -> None:
    agent = start(
        "import os, signal\n@holdfast.task\ndef die() -> None:\n    os.kill(os.getpid(), 9)\n"
        "@holdfast.task\ndef live() -> None: ...\n"
    )
    agent.say(batches=[agent.batch(5, ("live", {}), ("die", {}), ("live", {}))])
    assert agent.wait() == -signal.SIGKILL
    assert agent.place() == (5, 1, PHASE_CALLING, 2)


def test_short_calls_cost_no_system_call(start: Start) -> None:
    """LINE-2: 1000 calls write their place into memory and wake the line a few times."""
    agent = start()
    agent.run(1, ("double", {"n": 1}))
    before = count_switches(agent.process.pid)
    agent.run(2, *[("double", {"n": n}) for n in range(1000)])
    assert agent.place()[3] == 1001
    assert count_switches(agent.process.pid) - before < 250


def count_switches(pid: int) -> int:
    """How often the main thread gave its core up by itself."""
    for row in Path(f"/proc/{pid}/task/{pid}/status").read_text().splitlines():
        if row.startswith("voluntary_ctxt"):
            return int(row.split()[1])
    raise AssertionError(os.listdir(f"/proc/{pid}"))
