"""A task's tally in its agent: told about once a minute and with the end, and kept over a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.agent.probes import Probe
from holdfast.agent.probes.devices import Device
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask, TaskFile
from holdfast.agent.watch.runner import WatchRunner
from holdfast.agent.watch.telemetry import Telemetry
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskEvent
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.beat import Beat, encode_beat
from tests.unit.agent.test_watch_runner import Table


def make_task(folder: Path) -> AgentTask:
    key = TaskKey("job", 0, 1)
    watch = WatchSettings(health_watch="off", stall_watch=False)
    order = LaunchOrder(
        key=key, attempt=1, name="n", queue="q", project="p", argv=["x"], watch=watch, gpus=[0]
    )
    return AgentTask(key, folder, order, 100.0)


def start(task: AgentTask, at: float) -> None:
    task.move(AgentTaskEvent.LAUNCH)
    task.move(AgentTaskEvent.RUN)
    task.started_at = at
    task.watch.started(at)


def make_runner(task: AgentTask, **more: Any) -> WatchRunner:
    return WatchRunner(
        cast(TaskTable, Table(task)),
        cast(Probe, None),
        trip=lambda task, trip: None,
        first_beat=lambda: None,
        **more,
    )


def send(runner: WatchRunner, task: AgentTask, at: float, **said: Any) -> None:
    runner.take_beat(encode_beat(Beat(task=str(task.key), **said)), at)


def test_a_loss_that_stays_nan_is_told_once_and_with_each_report(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    runner = make_runner(task)
    start(task, 110.0)
    for step, nans in enumerate([0, 1, 2]):
        send(runner, task, 120.0 + step, step=step, nan_beats=nans)
    assert task.saved.notices == []
    for step, nans in enumerate([3, None, 4], 3):
        send(runner, task, 120.0 + step, step=step, nan_beats=nans)
    assert task.saved.notices == ["its loss was NaN or infinite for 3 beats in a row, up to step 3"]
    told = task.report(130.0).beat
    assert told is not None
    assert told.nan_beats == 4
    send(runner, task, 131.0, step=9, nan_beats=0)
    assert cast(Any, task.report(132.0).beat).nan_beats == 0


def test_a_task_counts_what_it_does_and_tells_it_once_a_minute_and_at_its_end(
    tmp_path: Path,
) -> None:
    task = make_task(tmp_path)
    runner = make_runner(task)
    start(task, 110.0)
    send(runner, task, 130.0, step=1)
    send(runner, task, 140.0, step=2, section="checkpoint")
    send(runner, task, 145.0, step=2)
    assert task.report(159.0).tally is None
    told = task.report(160.0).tally
    assert told is not None
    assert told.ms == {"setting_up": 10_000, "loading": 20_000, "kept": 25_000, "checkpointing": 5_000}  # fmt: skip
    assert (told.first_step, told.step, told.beaten) == (1, 2, True)
    assert task.report(161.0).tally is None
    task.move(AgentTaskEvent.END)
    task.end(AgentTaskEvent.REPORT, TaskFacts(exit_code=0), 170.0)
    facts = task.report(171.0).facts
    assert facts is not None
    assert facts.tally is not None
    assert sum(facts.tally.ms.values()) == 70_000


def test_a_brief_task_that_never_beat_tells_no_tally(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    start(task, 100.5)
    task.move(AgentTaskEvent.END)
    task.end(AgentTaskEvent.REPORT, TaskFacts(exit_code=0), 103.0)
    assert task.facts is not None
    assert task.facts.tally is None


def test_the_next_agent_goes_on_counting_where_a_killed_one_was(tmp_path: Path) -> None:
    task = make_task(tmp_path)
    start(task, 110.0)
    task.count_time(150.0)
    kept = msgspec.json.encode(task.saved)
    after = make_task(tmp_path)
    after.saved = msgspec.json.decode(kept, type=TaskFile)
    start(after, 110.0)
    after.count_time(200.0)
    assert after.saved.tally.tally.ms == {"setting_up": 10_000, "unmeasured_busy": 90_000}


def test_idle_gpus_make_time_idle_and_unreadable_ones_do_not(tmp_path: Path) -> None:
    telemetry = Telemetry(cast(Probe, None))
    telemetry._read_at = read_boottime()
    task = make_task(tmp_path)
    start(task, 100.0)
    runner = make_runner(task, idle=lambda t: telemetry.is_idle(t.gpus, 5.0))
    for n, percent in enumerate((0.0, 90.0, None)):
        telemetry._devices = [Device(index=0, utilisation_percent=percent)]
        runner.turn(100.0 + 4 * n)
    runner.turn(112.0)
    assert task.saved.tally.tally.ms == {"unmeasured_idle": 4_000, "unmeasured_busy": 8_000}
