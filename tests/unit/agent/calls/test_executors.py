"""Between real executors and a scripted controller, over the real socket."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.agent.calls import executors as module
from holdfast.agent.calls.apps import AppTrials
from holdfast.agent.calls.executor_paths import ExecutorPaths, make_place
from holdfast.agent.calls.executors import Executors
from holdfast.agent.calls.lines import ExecutorLine, ExecutorLines
from holdfast.agent.calls.places import (
    LOAD_SECONDS,
    UNLOAD_SECONDS,
    CallWatches,
    choose_watch,
    names_stall,
    read_place,
)
from holdfast.agent.calls.rooms import ModelRooms
from holdfast.agent.probes import Probe
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.watch.kills import Kills
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.facts import TaskFacts, Trip
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskEvent
from holdfast.core.watchdogs.verdicts import Suspect
from holdfast.errors import TooLarge, Unavailable
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.calls import (
    APP_CODE,
    PHASE_CALLING,
    PHASE_IDLE,
    PHASE_LOADING,
    PHASE_UNLOADING,
    Batch,
    CallEnd,
    CallOrder,
    CallsAnswer,
    CallSave,
    CallsRequest,
    Closing,
    ExecutorAnswer,
    ExecutorReport,
    ModelLimits,
    SetInfo,
)
from tests.simulated.probe import ScriptedProbe
from tests.waits import Patience

KEY = TaskKey("0123456789abcdefghjk", 0, 1)
OWN = WatchSettings(stall_watch=False, silence_limit_seconds=None, health_watch="off")

APP = """
import os, time
from pathlib import Path
import holdfast

@holdfast.task
def double(n: int) -> int:
    return 2 * n

@holdfast.task
def hold(path: str) -> None:
    Path(path).touch()
    while Path(path).exists():
        time.sleep(0.01)

@holdfast.task
def die() -> None:
    os.kill(os.getpid(), 9)

@holdfast.task
def go_on(ctx=None) -> str:
    before = ctx.checkpoint.load()
    ctx.checkpoint.save(b"half")
    return repr(before)

@holdfast.task
def shout(n: int) -> str:
    return n * "x"
"""


class ScriptedController:
    """Answers exchanges: hands out `todo` where calls are wanted, records every end."""

    def __init__(self) -> None:
        self.todo: list[Batch] = []
        self.say: dict[str, Any] = {}
        self.ends: dict[tuple[int, int], CallEnd] = {}
        self.closings: list[Closing] = []
        self.held: list[list[int]] = []
        self.reports: list[ExecutorReport] = []
        self.away = False
        self.missed = 0
        self.news = asyncio.Event()
        self.seq = 0

    async def exchange_calls(self, request: CallsRequest) -> CallsAnswer:
        if self.away:
            self.missed += 1
            raise Unavailable("away")
        self.seq = request.seq
        for _ in range(50):  # half a second of waiting for news
            answers = [answer for report in request.executors if (answer := self._turn(report))]
            if answers or request.wait_seconds == 0 or self.seq != request.seq:
                return CallsAnswer(executors=answers)
            await asyncio.sleep(0.01)
        return CallsAnswer()

    def _turn(self, report: ExecutorReport) -> ExecutorAnswer | None:
        recorded = []
        for batch in report.ends:
            for end in batch.ends:
                self.ends.setdefault((batch.batch, end.position), end)
                recorded.append((batch.batch, end.position))
        self.held.append(report.held)
        self.reports.append(report)
        if report.closing is not None:
            self.closings.append(report.closing)
            return ExecutorAnswer(key=report.key, recorded=recorded)
        batches = [self.todo.pop(0)] if self.todo and report.want else []
        said, self.say = self.say, {}
        answer = ExecutorAnswer(key=report.key, recorded=recorded, batches=batches, **said)
        return (
            answer
            if msgspec.structs.asdict(answer)
            != {**msgspec.structs.asdict(ExecutorAnswer(key=report.key))}
            else None
        )


NO_DEVICES = ScriptedProbe("")


class Rig:
    """The agent's side, and an executor as its agent would start it."""

    def __init__(self, folder: Path, probe: Probe = NO_DEVICES) -> None:
        self.folder = folder
        self.probe = probe
        (folder / "pages.py").write_text(APP)
        self.table = TaskTable(folder)
        self.table.open()
        self.home = ExecutorPaths(
            folder=folder / "calls", socket=str(folder / "s"), path=str(folder)
        )
        self.home.open()
        self.controller = ScriptedController()
        self.killed: list[TaskKey] = []
        self.moved: list[tuple[str, str]] = []
        self.saved: list[bytes] = []
        self.trouble: list[Exception] = []
        self.executors = self.make_executors()
        self.running: asyncio.Task[None] | None = None

    def make_executors(self) -> Executors:
        self.lines = ExecutorLines()
        self.rooms = self.make_rooms()
        return Executors(
            self.table,
            cast(ControllerCalls, self.controller),
            "i" * 8,
            move_blob=lambda way, sha256: self.moved.append((way, sha256)),
            move_checkpoint=self._carry,
            lines=self.lines,
            rooms=self.rooms,
            watching=WatchRunner(
                self.table, NO_DEVICES, trip=lambda *_: None, first_beat=lambda: None
            ),
            kills=cast(Kills, SimpleNamespace(kill=self._kill)),
            apps=AppTrials(SyncWish()),
        )

    def make_rooms(self) -> ModelRooms:
        return ModelRooms(self.table, self.probe, self.lines.find_declared, self.lines.wake)

    def _carry(self, key: TaskKey, save: CallSave) -> bool:
        if self.trouble:
            raise self.trouble.pop()
        path = self.home.blobs / save.file_name
        if save.sha256:
            self.saved.append(path.read_bytes())
        elif self.saved:
            path.write_bytes(self.saved[-1])
        return bool(self.saved)

    def _kill(self, task: AgentTask) -> None:
        self.killed.append(task.key)
        self.process.kill()

    async def start(self, gpus: Sequence[int] = ()) -> None:
        await self.executors.open(self.home.socket)
        self.running = asyncio.create_task(self.executors.run())
        order = LaunchOrder(
            key=KEY, attempt=1, name="n", queue="q", project="p", argv=[], watch=OWN,
            executor="pages-1", app="pages", gpus=list(gpus),
        )  # fmt: skip
        self.task = self.table.add(order, read_boottime())
        make_place(self.task.folder)
        self.task.move(AgentTaskEvent.LAUNCH)
        self.task.move(AgentTaskEvent.RUN)
        self.task.watch.started(read_boottime())
        env = {**os.environ, "HOLDFAST_TASK": str(KEY)}
        env |= self.home.make_environment(order, self.task.folder, "/work")
        with (self.folder / "log").open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.home.make_command(), env=env, cwd=self.folder, stdout=log, stderr=log
            )

    async def replace_executors(self) -> None:
        """An agent dies; its successor listens at the same path."""
        assert self.running is not None
        self.running.cancel()
        await self.executors.close()
        self.executors = self.make_executors()
        await self.executors.open(self.home.socket)
        self.running = asyncio.create_task(self.executors.run())

    def give(
        self, number: int, *calls: tuple[str, Any], named: float | None = None, **watch: Any
    ) -> None:
        sets = [
            SetInfo(
                id=f"set{at}",
                spec=FunctionSpec(function=f"pages:{name}", stall_timeout_seconds=named),
                watch=WatchSettings(**watch),
            )
            for at, (name, _) in enumerate(calls)
        ]  # fmt: skip
        orders = [CallOrder(at, at, 1, json.dumps(args)) for at, (_, args) in enumerate(calls)]
        self.controller.todo.append(Batch(id=number, sets=sets, calls=orders))

    async def until(self, condition: Callable[[], Any]) -> None:
        patience = Patience(10)
        while not condition():
            assert not patience.over, (self.folder / "log").read_text()
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        if self.running is not None:
            self.running.cancel()
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()
        await self.executors.close()


@contextlib.asynccontextmanager
async def rigged(folder: Path) -> AsyncIterator[Rig]:
    rig = Rig(folder)
    await rig.start()
    try:
        yield rig
    finally:
        await rig.close()


def test_batches_go_down_and_ends_come_up(tmp_path: Path) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            for number in range(1, 4):
                rig.give(number, ("double", {"n": number}), ("double", {"n": 0}))
            await rig.until(lambda: len(rig.controller.ends) == 6)
            assert json.loads(rig.controller.ends[3, 0].value) == 6
            await rig.until(lambda: rig.controller.held[-1] == [])

    asyncio.run(run())


def test_after_an_answer_the_next_request_waits_for_what_its_executor_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CALLS-3. A request with nothing to say would be taken first, and the end would wait for it."""
    monkeypatch.setattr(module, "GAP_SECONDS", 60.0)
    monkeypatch.setattr(module, "SHORT_GAP_SECONDS", 60.0)
    happened: list[str] = []
    receive, send = ExecutorLine.receive_frame, ExecutorLine.send_frame
    monkeypatch.setattr(
        ExecutorLine,
        "receive_frame",
        lambda line, frame: (happened.append("heard"), receive(line, frame)),
    )
    monkeypatch.setattr(
        ExecutorLine,
        "send_frame",
        lambda line, frame: (
            happened.append("batch" * bool(frame.batches) + "end" * bool(frame.recorded)),
            send(line, frame),
        ),
    )

    async def run() -> None:
        async with rigged(tmp_path) as rig:
            exchange = rig.controller.exchange_calls

            async def note(request: CallsRequest) -> CallsAnswer:
                happened.append("asked")
                return await exchange(request)

            rig.controller.exchange_calls = note  # type: ignore[method-assign]  # it is counted
            for number in (1, 2):  # the second is fewer calls than were wanted
                happened.clear()
                rig.give(number, ("double", {"n": 2}))
                await rig.until(lambda: len(rig.controller.ends) == number)  # noqa: B023  awaited in its round
                await rig.until(lambda: not rig.controller.held[-1])
        for word in ("batch", "end"):
            after = happened[happened.index(word) + 1 :]
            assert after.index("heard") < after.index("asked"), word

    asyncio.run(run())


def test_what_an_executor_gives_back_is_told_on(tmp_path: Path) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            flag = tmp_path / "flag"
            rig.give(1, ("hold", {"path": str(flag)}), ("double", {"n": 1}))
            await rig.until(lambda: any(r.busy == "long" for r in rig.controller.reports))
            await rig.until(lambda: rig.controller.reports[-1].returned == [(1, 1)])
            assert rig.controller.reports[-1].want == 0
            flag.unlink()
            await rig.until(lambda: rig.controller.ends)
            rig.controller.say = {"dropped": [1]}
            await rig.until(lambda: rig.controller.held[-1] == [])
            assert rig.controller.ends.keys() == {(1, 0)}, "the other one runs elsewhere"

    asyncio.run(run())


def test_a_new_agent_says_that_it_was_told_nothing_yet(tmp_path: Path) -> None:
    """A cancel that its predecessor was told of would come with the end of a long poll."""

    async def run() -> None:
        async with rigged(tmp_path) as rig:
            reports = rig.controller.reports
            rig.give(1, ("double", {"n": 1}))
            await rig.until(lambda: reports and not reports[-1].fresh)
            await rig.replace_executors()
            before = len(reports)
            await rig.until(lambda: any(report.fresh for report in reports[before:]))
            rig.give(2, ("double", {"n": 1}))
            await rig.until(lambda: not reports[-1].fresh)
            rig.controller.away = True
            rig.lines.wake()
            await rig.until(lambda: rig.controller.missed)
            rig.controller.away, before = False, len(reports)
            await rig.until(lambda: any(report.fresh for report in reports[before:]))

    asyncio.run(run())


def test_ends_wait_for_a_controller_that_is_away(tmp_path: Path) -> None:
    """CALLS-2."""

    async def run() -> None:
        async with rigged(tmp_path) as rig:
            flag = tmp_path / "flag"
            rig.give(1, ("hold", {"path": str(flag)}), ("double", {"n": 1}))
            await rig.until(flag.exists)
            rig.controller.away = True
            flag.unlink()
            await rig.until(lambda: read_place(rig.task.folder).phase == PHASE_IDLE)  # type: ignore[union-attr]  # it is there
            assert rig.controller.ends == {}
            rig.controller.away = False
            await rig.until(lambda: len(rig.controller.ends) == 2)

    asyncio.run(run())


def test_the_next_agent_goes_on_with_the_executor(tmp_path: Path) -> None:
    """INHAND-1, PLACE-3: nothing is lost, and the running call is watched as before."""

    async def run() -> None:
        async with rigged(tmp_path) as rig:
            flag = tmp_path / "flag"
            rig.give(1, ("hold", {"path": str(flag)}), ("double", {"n": 1}), time_limit_seconds=77)
            await rig.until(flag.exists)
            await rig.replace_executors()
            await rig.until(lambda: rig.lines.find_batch(KEY, 1) is not None)
            watches = CallWatches(rig.lines.find_batch, rig.lines.find_limits)
            assert watches.look(rig.task, read_boottime())
            assert rig.task.watch.settings.time_limit_seconds == 77
            flag.unlink()
            await rig.until(lambda: len(rig.controller.ends) == 2)

    asyncio.run(run())


@pytest.mark.parametrize("taken_over", [False, True])
def test_a_dead_executor_is_told_of_with_the_call_that_ran(
    tmp_path: Path, taken_over: bool
) -> None:
    """CALLS-1."""

    async def run() -> None:
        async with rigged(tmp_path) as rig:
            rig.give(5, ("double", {"n": 4}), ("die", {}), ("double", {"n": 5}))
            await rig.process.wait()
            if taken_over:
                await rig.replace_executors()
            facts = TaskFacts(signal=signal.SIGKILL)
            await rig.executors.end(rig.task, facts)
            [closing] = rig.controller.closings
            assert (closing.batch, closing.position, closing.loading) == (5, 1, False)
            assert closing.facts == facts

    asyncio.run(run())


def test_a_cancelled_call_that_does_not_end_is_ended(tmp_path: Path) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            flag = tmp_path / "flag"
            rig.give(1, ("hold", {"path": str(flag)}), grace_seconds=0.2)
            await rig.until(flag.exists)
            rig.controller.say = {"cancelled": [(1, 0)]}
            await rig.until(lambda: rig.killed)
            assert rig.killed == [KEY]

    asyncio.run(run())


def test_a_killed_call_is_ended_without_a_grace_and_none_that_comes_after_it(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            flag, other = tmp_path / "flag", tmp_path / "other"
            rig.give(1, ("hold", {"path": str(flag)}), ("hold", {"path": str(other)}))
            await rig.until(flag.exists)
            rig.controller.say = {"cancelled": [(1, 1)], "killed": [(1, 1)]}
            await rig.until(lambda: not rig.controller.say)
            assert rig.killed == [], "another call runs"
            rig.controller.say = {"cancelled": [(1, 0)], "killed": [(1, 0)]}
            await rig.until(lambda: rig.killed)
            assert rig.killed == [KEY]

    asyncio.run(run())


def test_a_lost_lease_trips_its_executor_alone(tmp_path: Path) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            rig.give(1, ("double", {"n": 4}))
            await rig.until(lambda: rig.controller.ends)
            rig.controller.say = {"lost": True}
            found: list[Trip] = []
            await rig.until(
                lambda: (
                    found
                    or [
                        found.append(v)
                        for v in rig.task.watch.tick(read_boottime())
                        if isinstance(v, Trip)
                    ]
                )
            )
            assert found[0].exit_code == 77

    asyncio.run(run())


def test_large_values_are_carried(tmp_path: Path) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            rig.give(1, ("shout", {"n": 300_000}))
            await rig.until(lambda: rig.controller.ends)
            [(way, sha256)] = rig.moved
            assert way == "keep"
            assert json.loads(rig.controller.ends[1, 0].value)["$blob"] == sha256

    asyncio.run(run())


def test_checkpoints_are_carried_for_a_while_also_when_the_controller_is_away(
    tmp_path: Path,
) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            rig.trouble.append(Unavailable("no connection"))
            rig.give(1, ("go_on", {}), ("go_on", {}))
            await rig.until(lambda: (1, 1) in rig.controller.ends)
            assert [rig.controller.ends[1, n].value for n in range(2)] == ['"None"', "\"b'half'\""]
            assert rig.saved == [b"half", b"half"]
            rig.trouble.append(TooLarge("a checkpoint may have 3 bytes"))
            rig.give(2, ("go_on", {}))
            await rig.until(lambda: (2, 0) in rig.controller.ends)
            assert "may have 3 bytes" in rig.controller.ends[2, 0].value

    asyncio.run(run())


def test_each_call_is_watched_anew(tmp_path: Path) -> None:
    """PLACE-1: the time of a call and its silence begin with it."""

    async def run() -> None:
        async with rigged(tmp_path) as rig:
            watches = CallWatches(rig.lines.find_batch, rig.lines.find_limits)
            one, two = tmp_path / "one", tmp_path / "two"
            watches.look(rig.task, read_boottime())
            assert rig.task.watch.settings == OWN
            rig.give(
                1, ("hold", {"path": str(one)}), ("hold", {"path": str(two)}),
                stall_timeout_seconds=9.0, named=9.0,
            )  # fmt: skip
            for path in (one, two):
                await rig.until(path.exists)
                watches.look(rig.task, read_boottime())
                assert rig.task.watch.settings.stall_timeout_seconds == 9.0
                beat = rig.task.watch.last_beat
                assert beat is not None
                assert beat.step is None
                rig.task.watch.beat(read_boottime(), step=5)
                watches.look(rig.task, read_boottime())
                assert rig.task.watch.last_beat.step == 5  # type: ignore[union-attr]  # it just beat
                path.unlink()
            await rig.until(lambda: read_place(rig.task.folder).phase == PHASE_IDLE)  # type: ignore[union-attr]  # as above
            watches.look(rig.task, read_boottime())
            assert rig.task.watch.settings == OWN

    asyncio.run(run())


def test_a_call_that_only_waits_is_no_stall_and_one_that_beat_may_be(tmp_path: Path) -> None:
    """PLACE-1: where its function names no `stall_timeout`."""

    async def run() -> None:
        async with rigged(tmp_path) as rig:
            watches, path = (
                CallWatches(rig.lines.find_batch, rig.lines.find_limits),
                tmp_path / "one",
            )
            rig.give(1, ("hold", {"path": str(path)}), stall_timeout_seconds=2.0)
            await rig.until(path.exists)
            watches.look(rig.task, read_boottime())
            assert rig.task.watch.settings.stall_timeout_seconds == 2.0
            assert rig.task.watch.last_beat is None
            now = read_boottime()
            waits = [v for second in range(6) for v in rig.task.watch.tick(now + second)]
            assert waits == []
            rig.task.watch.beat(now + 6)
            told = [v for second in range(7, 12) for v in rig.task.watch.tick(now + second)]
            assert [type(verdict) for verdict in told] == [Suspect]
            path.unlink()

    asyncio.run(run())


def test_a_model_that_names_its_patience_has_its_calls_watched_from_their_beginning() -> None:
    spec = FunctionSpec(function="pages:f")
    info = SetInfo(id="s", spec=spec)
    assert not names_stall(info, ModelLimits())
    assert names_stall(info, ModelLimits(stall_seconds=60.0))
    assert not names_stall(info, ModelLimits(stall_seconds=0.0)), "off"
    for said, named in ((5.0, True), ("off", False), (None, False)):
        given = msgspec.structs.replace(info, spec=msgspec.structs.replace(
            spec, stall_timeout_seconds=said))  # fmt: skip
        assert names_stall(given, ModelLimits()) is named


def test_how_an_executor_is_watched_in_each_phase() -> None:
    """PLACE-2."""
    info = SetInfo(id="s", spec=FunctionSpec(function="pages:x"), watch=WatchSettings())
    none, long_stall = ModelLimits(), ModelLimits(load_seconds=60.0, stall_seconds=3600.0)
    assert choose_watch(PHASE_IDLE, OWN, info, none) == OWN
    assert choose_watch(PHASE_CALLING, OWN, None, none) == OWN
    assert choose_watch(PHASE_CALLING, OWN, info, none) == info.watch
    loading = choose_watch(PHASE_LOADING, OWN, info, none)
    assert (loading.time_limit_seconds, loading.stall_watch) == (LOAD_SECONDS, False)
    assert choose_watch(PHASE_LOADING, OWN, info, long_stall).time_limit_seconds == 60.0
    unloading = choose_watch(PHASE_UNLOADING, OWN, info, long_stall)
    assert (unloading.time_limit_seconds, unloading.stall_watch) == (UNLOAD_SECONDS, False)
    patient = choose_watch(PHASE_CALLING, OWN, info, long_stall)
    assert (patient.stall_timeout_seconds, patient.silence_limit_seconds) == (3600.0, 3600.0)
    off = choose_watch(PHASE_CALLING, OWN, info, ModelLimits(stall_seconds=0.0))
    assert not off.stall_watch


def test_a_strangers_line_is_closed(tmp_path: Path) -> None:
    async def run() -> None:
        async with rigged(tmp_path) as rig:
            reader, writer = await asyncio.open_unix_connection(rig.home.socket)
            from holdfast.wire.calls import ExecutorFrame
            from holdfast.wire.frames import encode_frame

            hello = ExecutorFrame(task="0000000000000000000a:0:1", hello=True)
            writer.write(encode_frame(msgspec.msgpack.encode(hello)))
            assert await reader.read() == b""
            writer.close()

    asyncio.run(run())


def test_the_interpreter_of_executors_is_the_agents_own() -> None:
    assert ExecutorPaths(folder=Path("/x"), socket="/s").make_command()[0] == sys.executable


def test_an_executor_imports_the_code_that_was_brought_for_it(tmp_path: Path) -> None:
    home = ExecutorPaths(folder=tmp_path, socket="/s", path="/app")
    plain = LaunchOrder(
        key=KEY, attempt=1, name="n", queue="q", project="p", argv=[], watch=OWN,
        executor="pages-1", app="pages",
    )  # fmt: skip
    code = CodeRef(digest="a" * 64)
    brought = msgspec.structs.replace(plain, code=code)
    assert home.find_path(plain, "/work") == "/app"
    assert home.find_path(brought, "/work") == "/work"
    env = home.make_environment(brought, tmp_path, "/work")
    assert env["HOLDFAST_APP_PATH"] == "/work"
    assert msgspec.json.decode(env[APP_CODE], type=CodeRef) == code
    assert APP_CODE not in home.make_environment(plain, tmp_path, "/work")
