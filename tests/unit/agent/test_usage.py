"""The processors and memory of a task, read of real processes and of control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.watch import usage
from holdfast.agent.watch.usage import UsageMeter, count_work
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.process.groups import TaskGroup
from holdfast.wire.agent import LaunchOrder

MB = 1 << 20
WORK = """
import os, time
kept = os.urandom(1 << 20) * 60
def work():
    while time.process_time() < 0.4:
        pass
work()
print("worked", flush=True)
input()
if os.fork() == 0:
    work()
    os._exit(0)
os.wait()
print("its child worked", flush=True)
input()
"""


class Clock:
    """A clock that is told the time."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(usage, "read_boottime", found)
    return found


@pytest.fixture
def worker() -> Iterator[subprocess.Popen[str]]:
    """A process that holds 60 MiB, works for 0.4 s, and at a line for it lets a child work as long."""
    words = [sys.executable, "-S", "-c", WORK]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        words, stdin=pipe, stdout=pipe, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            os.killpg(process.pid, 9)


def add(folder: Path, pid: int, *, started_at: float) -> tuple[TaskTable, AgentTask]:
    table = TaskTable(folder)
    table.open()
    order = LaunchOrder(
        key=TaskKey("job", 0, 1), attempt=1, name="n", queue="q", project="p", argv=["x"]
    )
    task = table.add(order, 0.0)
    task.move(AgentTaskEvent.LAUNCH)
    task.move(AgentTaskEvent.RUN)
    task.pid, task.started_at = pid, started_at
    return table, task


def test_a_tree_s_cores_and_memory_are_those_of_its_processes_also_of_ended_ones(
    tmp_path: Path, clock: Clock, worker: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "find_apart_groups", lambda pids: {pid: [] for pid in pids})
    table, task = add(tmp_path, worker.pid, started_at=1000.0)
    meter = UsageMeter(table, os.getpid())
    assert worker.stdin is not None
    assert worker.stdout is not None
    assert worker.stdout.readline() == "worked\n"
    clock.now += 2.0
    (first,) = meter.measure([task])
    assert first.key == task.key
    assert first.cores == pytest.approx(0.2, abs=0.1), "0.4 s in the 2 s since its start"
    assert 60 * MB <= first.memory_bytes < 90 * MB
    clock.now += 0.5
    assert meter.measure([task]) == [], "half a second is no average"
    clock.now += 19.5
    assert meter.measure([task]) == [], "it was told a moment ago"
    worker.stdin.write("\n")
    worker.stdin.flush()
    assert worker.stdout.readline() == "its child worked\n"
    clock.now += 40.0
    (second,) = meter.measure([task])
    assert second.cores == pytest.approx(0.4 / 60, abs=0.003), "0.4 s in the minute since"
    assert second.cores_max == pytest.approx(0.4 / 40, abs=0.004)
    assert second.memory_bytes >= 60 * MB


def test_a_group_s_counters_are_the_task_s(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = tmp_path / "group"
    group.mkdir()
    (group / "cpu.stat").write_text("usage_usec 5000000\nuser_usec 1\n")
    (group / "memory.stat").write_text("anon 1000\nfile 900000\nkernel 7\nshmem 200\n")
    (group / "memory.swap.current").write_text("30\n")
    own = [TaskGroup(str(group), unified=True)]
    monkeypatch.setattr(usage, "find_apart_groups", lambda pids: dict.fromkeys(pids, own))
    table, task = add(tmp_path, os.getpid(), started_at=1.0)
    meter = UsageMeter(table, 1)
    assert meter.measure([task]) == [], "the average of a long life says nothing of now"
    (group / "cpu.stat").write_text("usage_usec 50000000\n")
    clock.now += 15
    (told,) = meter.measure([task])
    assert (told.cores, told.cores_max, told.memory_bytes) == (3.0, 3.0, 1230)
    for anon, usec in ((9000, 65000000), (1000, 140000000), (1000, 140000000), (1000, 140000000)):
        (group / "cpu.stat").write_text(f"usage_usec {usec}\n")
        (group / "memory.stat").write_text(f"anon {anon}\n")
        clock.now += 15
        told_now = meter.measure([task])
    (told,) = told_now
    assert (told.cores, told.cores_max, told.memory_bytes) == (1.5, 5.0, 9030), (
        "of the whole minute"
    )


def test_work_is_counted_once_also_that_of_ended_processes() -> None:
    """Of each process: its parent, and its seconds with those of the children that it reaped."""
    root, child, grandchild, other = (10, 1), (11, 2), (12, 3), (13, 4)
    before = {root: (1, 5.0), child: (10, 20.0), grandchild: (11, 30.0)}
    assert count_work(before, {root: (1, 6.0), child: (10, 22.0), grandchild: (11, 30.5)}) == 3.5
    reaped = {root: (1, 5.0 + 21.0 + 33.0)}
    assert count_work(before, reaped) == 4.0, "1 s of the child and 3 s of the grandchild"
    unreaped = {root: (1, 6.0), other: (10, 7.0)}
    assert count_work(before, unreaped) == 7.0, "a lost child takes nothing off the others' work"
    assert count_work({}, {root: (1, 2.0), child: (10, 1.0)}) == 3.0
