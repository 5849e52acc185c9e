"""WatchRunner: ranks of a gang on one host excuse each other, and ask for those elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import msgspec

from holdfast.agent.probes import Probe
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskEvent
from holdfast.wire.agent import Excused, LaunchOrder


class Table:
    """The tasks of one host."""

    def __init__(self, *tasks: AgentTask) -> None:
        self.tasks = {task.key: task for task in tasks}

    def __iter__(self) -> Iterator[AgentTask]:
        return iter(self.tasks.values())

    def get(self, key: TaskKey) -> AgentTask | None:
        return self.tasks.get(key)

    def save(self, task: AgentTask, now: float) -> None:
        task.dirty = False


def make_rank(folder: Path, rank: int, job_id: str = "gang", hosts: int = 1) -> AgentTask:
    key = TaskKey(job_id, rank, 1)
    watch = WatchSettings(health_watch="off")
    order = LaunchOrder(
        key=key, attempt=1, name="n", queue="q", project="p", argv=["x"], watch=watch,
        world_size=2, group_world_size=hosts,
    )  # fmt: skip
    task = AgentTask(key, folder / f"{job_id}.{rank}", order, 0.0)
    task.move(AgentTaskEvent.LAUNCH)
    task.move(AgentTaskEvent.RUN)
    task.started_at = 1.0
    task.watch.started(1.0)
    task.watch.beat(1.0, step=1)
    return task


def make_runner(*tasks: AgentTask) -> tuple[WatchRunner, list[TaskKey], list[bool]]:
    tripped, asked = list[TaskKey](), list[bool]()
    runner = WatchRunner(
        cast(TaskTable, Table(*tasks)),
        cast(Probe, None),
        trip=lambda task, _: tripped.append(task.key),
        first_beat=lambda: asked.append(True),
    )
    return runner, tripped, asked


def test_a_rank_that_saves_excuses_those_that_wait_for_it_here_and_no_other_job(
    tmp_path: Path,
) -> None:
    saves, waits, other = (
        make_rank(tmp_path, 0),
        make_rank(tmp_path, 1),
        make_rank(tmp_path, 0, "alone"),
    )
    runner, _, _ = make_runner(saves, waits, other)
    saves.watch.beat(2.0, section="checkpoint", timeout=600.0)
    for now in range(3, 115, 5):
        runner.turn(float(now))
    wish, others = waits.watch.wants_sample(), other.watch.wants_sample()
    assert wish is not None
    assert others is not None
    assert others.at == 1.0 + 119.0, "the other job's silence counts as ever"
    assert wish.at > 113.0 + 110.0


def test_a_rank_that_spans_hosts_tells_its_section_and_asks_at_once_when_it_waits(
    tmp_path: Path,
) -> None:
    rank = make_rank(tmp_path, 1, hosts=2)
    runner, _, asked = make_runner(rank)
    runner.turn(5.0)
    assert (rank.report(5.0).section_seconds, rank.report(5.0).waits) == (None, False)
    for now in range(10, 81, 5):
        runner.turn(float(now))
    assert asked == [True], "once, when half of its patience is over"
    assert rank.report(80.0).waits
    runner.take_excuses([Excused(rank.key, 30.0), Excused(TaskKey("gone", 0, 1), 9.0)], 80.0)
    assert not rank.report(81.0).waits
    rank.watch.beat(86.0, section="eval", timeout=100.0)
    assert rank.report(96.0).section_seconds == 90.0
    rank.watch.beat(97.0, section="eval", leave=True)
    assert rank.report(99.0).section_seconds == 0.0
    alone = make_rank(tmp_path, 0, hosts=1)
    alone.watch.beat(2.0, section="eval", timeout=100.0)
    assert alone.report(3.0).section_seconds is None, "no other host has ranks of it"


def test_a_printed_counter_that_stands_is_read_from_the_end_of_the_output(tmp_path: Path) -> None:
    task = make_rank(tmp_path, 0, "bar")
    task.folder.mkdir()
    task.watch.change_settings(1.0, WatchSettings(health_watch="off", standstill_seconds=60.0))
    runner, _, _ = make_runner(task)
    with task.path_of("stderr").open("a") as output:
        for at in range(10, 70, 10):
            output.write("x" * 5000 + f"\r {at}%|###      | {at}/100 [00:0{at // 10}<00:40]")
            output.flush()
            runner.turn(float(at))
    wish = task.watch.wants_sample()
    assert wish is not None
    assert wish.at == 60.0 + 30.0  # the last half of the patience
    with task.path_of("stderr").open("a") as output:
        output.write("\r100%|#########| 100/100 [01:00<00:00]\nserving\n")
    task.read_printed(70.0)
    assert task.printed.moves == 0  # the bar is at its end


def test_an_executor_stands_still_between_its_calls_and_nothing_is_said(tmp_path: Path) -> None:
    task = make_rank(tmp_path, 0, "executor")
    assert task.order is not None
    task.order = msgspec.structs.replace(task.order, executor="family")
    task.steps.beat(1.0, 1)
    task.note_progress(1.0)
    assert task.watch.wants_sample() is not None
    assert task.watch.wants_sample().at == 120.0  # type: ignore[union-attr]  # as above
