"""The table of a task inside its agent, walked through kill -9: at every state the agent's memory is
dropped, and another one goes on with the disk and with what the guardian holds."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from holdfast.agent.abilities import Hindrances
from holdfast.agent.bundles.code import CodeUnpacking
from holdfast.agent.calls.apps import AppTrials
from holdfast.agent.calls.executor_paths import ExecutorPaths
from holdfast.agent.calls.executors import Executors
from holdfast.agent.calls.lines import ExecutorLines
from holdfast.agent.calls.places import CallWatches
from holdfast.agent.calls.rooms import ModelRooms
from holdfast.agent.config import AgentConfig
from holdfast.agent.containers.tasks import ContainerOptions, ContainerTasks
from holdfast.agent.data.caches import CacheKeeper, HostCaches
from holdfast.agent.data.outputs import OutputsKeeper
from holdfast.agent.departure import Departure
from holdfast.agent.folders import WorkFolders
from holdfast.agent.health.checks import HealthChecks
from holdfast.agent.host_facts import FactsReader, make_probe
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.link import GuardianLink
from holdfast.agent.orders import ends
from holdfast.agent.orders.claims import Claims
from holdfast.agent.orders.commands import Commands
from holdfast.agent.orders.ends import TaskEnds
from holdfast.agent.orders.hearing import Hearing
from holdfast.agent.orders.launches import Launcher, TaskPlaces
from holdfast.agent.orders.starts import TaskStarts
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.checkpoints import OUT_FOLDER, CheckpointTransfers
from holdfast.agent.uplink.logs import LogShipper
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.uplink.transfers import SavedCheckpoint, Transfers, Wire
from holdfast.agent.watch.faults import FaultLooks
from holdfast.agent.watch.forensics import ForensicsSender
from holdfast.agent.watch.kills import Kills
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.core.transitions import AGENT_TASK
from holdfast.errors import Unavailable
from holdfast.http.addresses import read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.blocking import BlockingHttp
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import CheckpointOffer, LaunchOrder, PreemptOrder, SyncAnswer
from holdfast.wire.guardian import (
    Ack,
    LaunchTask,
    Request,
    Snapshot,
    TaskEnded,
    TaskStarted,
    TaskStatus,
)
from holdfast.wire.logs.uploads import LogsAnswer, LogUpload
from tests.waits import in_time, within

KEY = TaskKey("job", 0, 1)
ORDER = LaunchOrder(key=KEY, attempt=1, name="n", queue="q", project="p", argv=["x"])
OFFER = CheckpointOffer(number=1, step=None, size=1, sha256="0" * 64)
FETCHING = msgspec.structs.replace(ORDER, checkpoint=OFFER)
ENDED = TaskEnded(key=KEY, exit_code=3, runtime_seconds=1.5)
S = AgentTaskState


class Guardian(GuardianLink):
    """Holds what a guardian would, whichever agent speaks to it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[TaskKey, TaskStatus] = {}

    def send_message(self, request: Request) -> None:
        if isinstance(request, LaunchTask):
            self.hold(request.key)
        elif isinstance(request, Ack):
            for key in request.keys:
                self.held.pop(key, None)

    def hold(
        self, key: TaskKey, *, pid: int = 0, ended: TaskEnded | None = None, began: float = 1.0
    ) -> None:
        began = began if pid else 0.0
        self.held[key] = TaskStatus(
            key=key, pid=pid, started_at=began, deadline=9.0, stdout="", stderr="", ended=ended
        )

    def look(self) -> Snapshot:
        return Snapshot(incarnation="i", tasks=list(self.held.values()), number=1)


class Uplink(Transfers):
    """A controller that takes checkpoints once it is `there`."""

    there = False

    def __init__(self) -> None:
        super().__init__(
            BlockingHttp(read_addresses("http://127.0.0.1:9")), incarnation="i" * 8, token=str
        )

    def upload(self, key: TaskKey, saved: SavedCheckpoint, sha256: str, wire: Wire) -> int:
        if not self.there:
            raise Unavailable("away")
        return 1

    def download(self, key: TaskKey, offer: CheckpointOffer, path: Path, wire: Wire) -> None:
        while not self.there:
            wire.check()
            time.sleep(0.002)


class Logs:
    """A controller that takes logs."""

    async def send_logs(self, uploads: list[LogUpload]) -> LogsAnswer:
        return LogsAnswer()


class Told(CallWatches):
    """Knows whose end is due in the next sync."""

    def __init__(self, lines: ExecutorLines) -> None:
        super().__init__(lines.find_batch, lines.find_limits)
        self.keys: list[TaskKey] = []

    def forget(self, key: TaskKey) -> None:
        self.keys.append(key)


class Life:
    """One agent's memory of its tasks."""

    def __init__(self, folder: Path, guardian: Guardian, uplink: Uplink) -> None:
        self.guardian = guardian
        self.table = TaskTable(folder)
        self.table.open()
        works = WorkFolders(folder / "work")
        works.root.mkdir(exist_ok=True)
        probe = make_probe(AgentConfig(url="http://c", state_dir=str(folder)))
        calls = ControllerCalls(AsyncHttp(read_addresses("http://c")))
        self.news = news = SyncWish()
        lines = ExecutorLines()
        self.told = Told(lines)
        hindrances = Hindrances(news)
        kills = Kills(self.table, guardian, ForensicsSender(calls, probe))
        self.checkpoints = CheckpointTransfers(self.table, uplink)
        watching = WatchRunner(self.table, probe, trip=kills.take_trip, first_beat=news.report)
        faults = FaultLooks(probe, self.table)
        starts = TaskStarts(watching, faults, news)
        containers = ContainerTasks(
            folder / "containers", mark="m", options=ContainerOptions(), begun=starts.begin
        )
        self.keeper = Housekeeper(self.table, works)
        self.shipper = LogShipper(
            cast(ControllerCalls, Logs()), lambda t: self.keeper.forget_recorded(t)
        )
        places = TaskPlaces(
            host_mark="m",
            beat_socket="/b",
            works=works,
            inherited={},
            executors=ExecutorPaths(folder=folder / "calls", socket="/c"),
        )
        claims = Claims()
        launcher = Launcher(
            self.table,
            guardian,
            places,
            containers=containers,
            checkpoints=self.checkpoints,
            code=CodeUnpacking(folder / "code", works, uplink),
            shipper=self.shipper,
            hindrances=hindrances,
            news=news,
            ports=claims.ports,
        )
        self.commands = Commands(
            self.table,
            guardian,
            launcher,
            claims=claims,
            checkpoints=self.checkpoints,
            watching=watching,
            keeper=self.keeper,
            news=news,
        )
        self.ends = TaskEnds(
            self.table,
            containers=containers,
            faults=faults,
            checkpoints=self.checkpoints,
            calls=Executors(
                self.table,
                calls,
                "i" * 8,
                move_blob=lambda way, sha256: None,
                move_checkpoint=lambda key, save: False,
                lines=lines,
                rooms=ModelRooms(self.table, probe, lines.find_declared, lines.wake),
                watching=watching,
                kills=kills,
                apps=AppTrials(news),
            ),
            places=self.told,
            outputs=OutputsKeeper(folder / "outputs", self.table, uplink),
            caches=CacheKeeper(HostCaches(folder / "caches", 0), self.table, calls.tell_caches),
            commands=self.commands,
            watching=watching,
            shipper=self.shipper,
            health=HealthChecks(
                calls.ask_health,
                FactsReader(AgentConfig(url="http://c", state_dir=str(folder)), probe).find_gpus,
                incarnation="i" * 8,
                folder=folder,
            ),
            departure=Departure(self.table, guardian),
            news=news,
        )
        self.hearing = Hearing(
            self.table,
            guardian,
            commands=self.commands,
            ends=self.ends,
            kills=kills,
            containers=containers,
            checkpoints=self.checkpoints,
            shipper=self.shipper,
            keeper=self.keeper,
            starts=starts,
            hindrances=hindrances,
        )
        self.hearing.take_over(guardian.look())

    def task(self) -> AgentTask:
        task = self.table.get(KEY)
        assert task is not None
        return task

    def hear(self, answer: SyncAnswer) -> None:
        self.commands.carry_out(answer, started_at=read_boottime(), newest=True)

    async def until(self, done: Callable[[], bool]) -> None:
        async with within(10):
            while not done():
                await asyncio.sleep(0.002)

    async def die(self) -> None:
        """As by kill -9: nothing more is written."""
        self.table.save = lambda task, now: None  # type: ignore[method-assign]  # a dead agent
        await self.table.works.close()
        await self.checkpoints.close()


class Walk:
    """One task on its way through the table, by one agent or by many."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.guardian = Guardian()
        self.uplink = Uplink()
        self.life = Life(folder, self.guardian, self.uplink)

    async def kill(self) -> None:
        await self.life.die()
        self.life = Life(self.folder, self.guardian, self.uplink)

    async def reach(self, state: AgentTaskState) -> None:
        """The step that leads from the state before to this one."""
        life = self.life
        if state is S.LAUNCHED:
            life.hear(SyncAnswer(launch=[ORDER]))
        elif state is S.RUNNING:
            task = life.task()
            (task.path_of("stdout")).write_text("out\n")
            (task.folder / OUT_FOLDER / "checkpoint.5").write_bytes(b"saved")
            self.guardian.hold(KEY, pid=4321)
            life.hearing.take_start(TaskStarted(key=KEY, pid=4321, started_at=1.0))
        elif state is S.ENDING:
            self.guardian.hold(KEY, pid=4321, ended=ENDED)
            life.hearing.take_end(ENDED)
        elif state is S.SAVING:
            await life.until(lambda: life.task().state is S.SAVING)
        elif state is S.REPORTED:
            self.uplink.there = True
            await life.until(lambda: life.task().state is S.REPORTED)
        elif state is S.ACKNOWLEDGED:
            life.hear(SyncAnswer(acked=[KEY]))
            life.table.save(life.task(), 2.0)
        elif state is S.DONE:
            shipping = asyncio.create_task(life.shipper.run())
            await life.until(lambda: life.table.get(KEY) is None)
            shipping.cancel()


@pytest.fixture
async def walk(tmp_path: Path) -> AsyncIterator[Walk]:
    walk = Walk(tmp_path)
    yield walk
    await walk.life.die()


MAKING = msgspec.structs.replace(ORDER, setup="pip install x")


async def test_no_watchdog_judges_a_task_while_its_environment_is_made(walk: Walk) -> None:
    """START-1: also by an agent that took over meanwhile; its own time counts from its program."""
    walk.life.hear(SyncAnswer(launch=[MAKING]))
    started_at = read_boottime() - 500
    walk.guardian.hold(KEY, pid=4321, began=started_at)
    walk.life.hearing.take_start(TaskStarted(key=KEY, pid=4321, started_at=started_at))
    for _ in range(2):
        task = walk.life.task()
        assert (task.state, task.has_processes) == (S.LAUNCHED, True)
        assert task.report(read_boottime()).state == "starting"
        assert task.watch.wants_sample() is None
        await walk.kill()
    made_at = read_boottime()
    (walk.life.task().folder / "setup/made").write_text(f"{made_at:.3f}\n")
    await walk.life.until(lambda: walk.life.task().state is S.RUNNING)
    task = walk.life.task()
    assert task.started_at == pytest.approx(made_at, abs=0.01)
    assert task.setup_seconds == pytest.approx(500, abs=1)
    walk.uplink.there = True
    walk.life.hearing.take_end(msgspec.structs.replace(ENDED, runtime_seconds=501.5))
    await walk.life.until(lambda: walk.life.task().state is S.REPORTED)
    facts = walk.life.task().facts
    assert facts is not None
    assert facts.runtime_seconds == pytest.approx(1.5, abs=0.5)


@pytest.mark.parametrize("made", [True, False])
async def test_a_program_that_ends_before_its_start_was_seen_has_run(
    walk: Walk, made: bool
) -> None:
    walk.life.hear(SyncAnswer(launch=[MAKING]))
    now = read_boottime()
    walk.life.hearing.take_start(TaskStarted(key=KEY, pid=4321, started_at=now))
    if made:
        (walk.life.task().folder / "setup/made").write_text(f"{now + 1:.3f}\n")
    walk.uplink.there = True
    walk.life.hearing.take_end(ENDED)
    assert walk.life.task().began is made
    await walk.life.until(lambda: walk.life.task().state is S.REPORTED)


async def test_the_ends_of_short_tasks_that_began_together_are_told_together(
    walk: Walk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sync for both costs the controller as much as a sync for one."""
    monkeypatch.setattr(ends, "YOUNG_TOLD_SECONDS", 3600.0)
    life, keys = walk.life, [KEY, TaskKey("other", 0, 1)]
    life.hear(SyncAnswer(launch=[msgspec.structs.replace(ORDER, key=key) for key in keys]))
    dues = []
    for key in keys:
        task = life.table.get(key)
        assert task is not None
        assert task.is_young(read_boottime()), "it may end in a moment"
        life.hearing.take_start(TaskStarted(key=key, pid=4321, started_at=read_boottime()))
        life.hearing.take_end(TaskEnded(key=key, exit_code=0, runtime_seconds=0.001))
        await life.until(lambda task=task: task.state is S.REPORTED)
        dues.append(life.news.due)
    assert dues == [False, True]


async def test_an_end_waits_for_no_task_that_runs_for_long(walk: Walk) -> None:
    life, other = walk.life, TaskKey("other", 0, 1)
    for key, seconds in ((other, 60.0), (KEY, 0.0)):
        life.hear(SyncAnswer(launch=[msgspec.structs.replace(ORDER, key=key)]))
        began = read_boottime() - seconds
        life.hearing.take_start(TaskStarted(key=key, pid=4321, started_at=began))
    task = life.task()
    life.hearing.take_end(TaskEnded(key=KEY, exit_code=0, runtime_seconds=0.001))
    await life.until(lambda: task.state is S.REPORTED)
    assert life.news.due


@pytest.fixture
def left() -> Iterator[str]:
    """The path of a folder with 64 MiB of shared memory."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="holdfast-tests-") as folder:
        Path(folder, "left").write_bytes(bytes(64 << 20))
        yield folder


@pytest.mark.parametrize("code", [0, 3])
async def test_a_failed_task_tells_what_it_left_in_shared_memory(
    walk: Walk, left: str, code: int
) -> None:
    walk.life.hear(SyncAnswer(launch=[ORDER]))
    started_at = read_boottime() - 60
    walk.life.hearing.take_start(TaskStarted(key=KEY, pid=4321, started_at=started_at))
    walk.uplink.there = True
    walk.life.hearing.take_end(msgspec.structs.replace(ENDED, exit_code=code))
    await walk.life.until(lambda: walk.life.task().state is S.REPORTED)
    facts = walk.life.task().facts
    assert facts is not None
    told = [one for one in facts.notices if f"{left} (64 MiB)" in one and "rm -r -- " in one]
    assert len(told) == (code != 0)


PATH = (S.LAUNCHED, S.RUNNING, S.ENDING, S.SAVING, S.REPORTED, S.ACKNOWLEDGED, S.DONE)


@pytest.mark.parametrize("killed", [(), *((state,) for state in PATH), PATH], ids=str)
async def test_a_task_goes_its_whole_way_whenever_its_agents_are_killed(
    walk: Walk, killed: tuple[AgentTaskState, ...]
) -> None:
    for state in PATH:
        await walk.reach(state)
        task = walk.life.table.get(KEY)
        assert task is None or task.state in (state, S.SAVING if state is S.ENDING else state)
        if state is S.REPORTED:
            facts = walk.life.task().facts
            assert isinstance(facts, TaskFacts)
            assert (facts.exit_code, "out" in facts.log_tail) == (3, True)
        if state in killed:
            await walk.kill()
            again = walk.life.table.get(KEY)
            if state is S.REPORTED:  # the guardian says the end again, and its steps are taken anew
                await walk.life.until(lambda: walk.life.task().state is S.REPORTED)
            elif state is S.DONE:  # its folder was still there, so its log is shipped again
                await walk.reach(S.DONE)
            else:
                expected = S.ENDING if state is S.SAVING else state
                assert again is not None
                assert again.state is expected
    assert walk.life.table.get(KEY) is None
    assert walk.guardian.held == {}
    walk.life.keeper.sweep()
    assert not (walk.folder / "tasks" / "job.0.1").exists()


async def reach_shipped(walk: Walk) -> Path:
    """Take the task to its report, with its logs on record; return its folder."""
    for state in PATH[: PATH.index(S.ACKNOWLEDGED)]:
        await walk.reach(state)
    shipping = asyncio.create_task(walk.life.shipper.run())
    await walk.life.until(lambda: walk.life.task().saved.shipped_whole)
    shipping.cancel()
    return walk.life.task().folder


async def test_an_answers_orders_go_before_what_its_ends_leave_behind(walk: Walk) -> None:
    folder = await reach_shipped(walk)
    again = msgspec.structs.replace(ORDER, key=TaskKey(KEY.job_id, KEY.rank, KEY.epoch + 1))
    walk.life.hear(SyncAnswer(acked=[KEY], launch=[again]))
    launched = walk.life.table.get(again.key)
    assert launched is not None
    assert launched.state is S.LAUNCHED
    assert (walk.life.table.get(KEY), folder.exists()) == (None, True)
    await asyncio.sleep(0)
    walk.life.keeper.sweep()
    assert not folder.exists()
    assert (walk.folder / "work" / KEY.job_id).exists()  # the next attempt stands in it


async def test_what_an_agent_killed_meanwhile_left_is_put_away_by_the_next(walk: Walk) -> None:
    folder = await reach_shipped(walk)
    walk.life.keeper.put_away = lambda task: None  # type: ignore[method-assign]  # it is killed here
    walk.life.hear(SyncAnswer(acked=[KEY]))
    await walk.kill()
    assert folder.exists()
    await walk.reach(S.DONE)
    await asyncio.sleep(0)
    walk.life.keeper.sweep()
    assert not folder.exists()


async def test_an_order_that_was_not_launched_leaves_nothing_to_the_next_agent(walk: Walk) -> None:
    walk.life.table.add(ORDER, 0.0)
    assert walk.life.task().state is S.ORDERED
    await walk.kill()
    assert walk.life.table.get(KEY) is None
    await walk.reach(S.LAUNCHED)
    assert walk.life.task().state is S.LAUNCHED


async def test_a_task_is_launched_once_its_checkpoint_is_here(walk: Walk) -> None:
    """SAVE-3."""
    walk.life.hear(SyncAnswer(launch=[FETCHING]))
    assert walk.life.task().state is S.FETCHING
    assert walk.guardian.held == {}
    await walk.kill()
    assert walk.life.table.get(KEY) is None
    walk.life.hear(SyncAnswer(launch=[FETCHING]))
    walk.uplink.there = True
    await walk.life.until(lambda: walk.life.task().state is S.LAUNCHED)
    assert KEY in walk.guardian.held


async def test_a_stop_breaks_the_fetch_off(walk: Walk) -> None:
    walk.life.hear(SyncAnswer(launch=[FETCHING]))
    stop = PreemptOrder(key=KEY, cause=Cause.USER_CANCELLED, grace_seconds=5.0)
    walk.life.hear(SyncAnswer(preempt=[stop]))
    assert walk.life.task().state is S.REPORTED
    assert walk.life.task().facts == TaskFacts(stopped=True)
    walk.uplink.there = True
    await asyncio.sleep(0.02)
    assert walk.guardian.held == {}


async def test_a_start_that_fails_in_the_agent_ends_the_agent(walk: Walk) -> None:
    """Its next one, which the controller offers the task again, may do better."""
    walk.uplink.there = True
    order = msgspec.structs.replace(FETCHING, argv=None)
    walk.life.hear(SyncAnswer(launch=[order]))
    with pytest.raises(TypeError):
        await in_time(walk.life.table.works.watch(), 10)


async def test_an_acknowledgement_that_the_guardian_never_heard_is_said_again(walk: Walk) -> None:
    for state in PATH[:-1]:
        await walk.reach(state)
    walk.guardian.hold(KEY, pid=4321, ended=ENDED)
    await walk.kill()
    assert walk.guardian.held == {}
    assert walk.life.task().state is S.ACKNOWLEDGED
    assert walk.life.told.keys == []


async def test_an_end_is_reported_once_however_often_it_is_heard(walk: Walk) -> None:
    for state in PATH[:3]:
        await walk.reach(state)
    walk.life.hearing.take_end(ENDED)
    await walk.reach(S.REPORTED)
    walk.life.hearing.take_end(ENDED)
    await asyncio.sleep(0)
    assert walk.life.told.keys == [KEY]


def test_what_an_earlier_version_wrote_is_read(tmp_path: Path) -> None:
    """An agent is replaced under running tasks: field names of `state.json` never change."""
    table = TaskTable(tmp_path)
    table.open()
    table.add(ORDER, 0.0)
    path = tmp_path / "tasks" / "job.0.1" / "state.json"
    path.write_text(
        '{"shipped":{"stdout":12},"shipped_whole":true,"stop_asked":true,"kill_sent":true,'
        '"devices":{"sequence":7},"acked":true}'
    )
    found = TaskTable(tmp_path).restore(KEY, 1.0)
    saved = found.saved
    assert (saved.shipped, saved.shipped_whole, saved.acked) == ({"stdout": 12}, True, True)
    assert (saved.stop_asked, saved.kill_sent) == (True, True)
    assert saved.devices is not None
    assert found.order == ORDER


def test_the_walk_passes_every_state() -> None:
    assert {S.ORDERED, S.FETCHING, *PATH} == {state for state, _ in AGENT_TASK} | {S.DONE}


@pytest.mark.parametrize(
    ("ended", "together", "stops"),
    [
        ({"exit_code": 3}, True, True),
        ({"signal": 9}, True, True),
        ({"start_error": "no such program"}, True, True),
        ({"exit_code": 0}, True, False),
        ({"signal": 15, "stopped": True}, True, False),
        ({"exit_code": 3}, False, False),
    ],
)
async def test_a_bad_end_has_the_gang_stopped_where_it_is_whole_on_this_host(
    walk: Walk, ended: dict[str, Any], together: bool, stops: bool
) -> None:
    """FALL-1."""
    fell: list[TaskKey] = []
    walk.life.commands.stop_others = lambda task: fell.append(task.key)  # type: ignore[method-assign]  # a double
    order = msgspec.structs.replace(ORDER, world_size=2, falls_together=together)
    walk.life.hear(SyncAnswer(launch=[order]))
    walk.life.hearing.take_start(TaskStarted(key=KEY, pid=4321, started_at=1.0))
    walk.life.hearing.take_end(TaskEnded(key=KEY, runtime_seconds=1.0, **ended))
    await walk.reach(S.REPORTED)
    assert (walk.life.task().fell, fell) == (stops, [KEY] if stops else [])


async def test_the_end_that_began_a_fall_is_reported_no_later_than_the_others(walk: Walk) -> None:
    """FALL-1: the others wait while its last checkpoint is uploaded, so that it is charged."""
    life, other = walk.life, TaskKey(KEY.job_id, 1, KEY.epoch)
    for key in (KEY, other):
        order = msgspec.structs.replace(ORDER, key=key, world_size=2, falls_together=True)
        life.hear(SyncAnswer(launch=[order]))
        life.hearing.take_start(TaskStarted(key=key, pid=4321 + key.rank, started_at=1.0))
    (life.task().folder / OUT_FOLDER / "checkpoint.5").write_bytes(b"saved")
    life.hearing.take_end(ENDED)
    await life.until(lambda: life.task().state is S.SAVING)
    sibling = life.table.get(other)
    assert sibling is not None
    assert sibling.saved.stop_asked
    life.hearing.take_end(TaskEnded(key=other, signal=15, stopped=True, runtime_seconds=1.5))
    for _ in range(20):
        await asyncio.sleep(0.002)
    assert (life.told.keys, sibling.state) == ([], S.ENDING)
    walk.uplink.there = True
    await life.until(lambda: sibling.state is S.REPORTED)
    assert life.told.keys == [KEY, other]
