"""The memory watch over real processes (MEM-1, MEM-2)."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.agent.probes import tree
from holdfast.agent.probes.tree import read_own_bytes, read_usage
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.watch import memory
from holdfast.agent.watch.memory import MemoryWatch
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.wire.agent import LaunchOrder
from tests.waits import within

MB = 1 << 20
HOLD = """
import os, sys, time
kept = os.urandom(1 << 20) * 60
if all(os.fork() for _ in range(int(sys.argv[1]))):
    print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def run(children: int = 0, code: str = HOLD) -> Iterator[int]:
    """A process that holds 60 MiB, which so many children share."""
    with subprocess.Popen(
        [sys.executable, "-S", "-c", code, str(children)],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            yield process.pid
        finally:
            os.killpg(process.pid, 9)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TaskTable:
    monkeypatch.setattr(memory, "read_memory_limit", lambda pid: None)
    found = TaskTable(tmp_path)
    found.open()
    return found


def add(table: TaskTable, pid: int, limit: int) -> AgentTask:
    order = LaunchOrder(
        key=TaskKey(f"job{limit}", 0, 1),
        attempt=1,
        name="n",
        queue="q",
        project="p",
        argv=["x"],
        memory_bytes=limit,
    )
    task = table.add(order, 0.0)
    task.move(AgentTaskEvent.LAUNCH)
    task.move(AgentTaskEvent.RUN)
    task.pid = pid
    return task


async def watch_until_killed(table: TaskTable, seconds: float) -> list[AgentTask]:
    killed: list[AgentTask] = []
    watch = MemoryWatch(table, os.getpid(), killed.append)
    running = asyncio.create_task(watch.run())
    try:
        async with within(seconds):
            while not killed:
                await asyncio.sleep(0.02)
    except TimeoutError:
        pass
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    return killed


async def test_a_tree_over_its_limit_is_ended_with_its_figure(table: TaskTable) -> None:
    with run() as pid, run() as other:
        task, roomy = add(table, pid, 50 * MB), add(table, other, 500 * MB)
        assert await watch_until_killed(table, 30) == [task]
        assert 55 * MB < task.saved.over_memory_bytes < 100 * MB
        assert not roomy.saved.over_memory_bytes
        again = TaskTable(table.folder_of(task.key).parent.parent).restore(task.key, 0.0)
        assert again.saved.over_memory_bytes == task.saved.over_memory_bytes


def test_what_processes_share_is_counted_once(table: TaskTable) -> None:
    """MEM-1: eight children that share 60 MiB hold 60 MiB together."""
    with run(8) as pid:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        pids = [pid, *map(int, children)]
        resident = sum(usage.rss_bytes for p in pids if (usage := read_usage(p)) is not None)
        own = sum(map(read_own_bytes, pids))
        assert resident > 300 * MB > 150 * MB > own > 55 * MB
        task = add(table, pid, 200 * MB)
        watch = MemoryWatch(table, os.getpid(), lambda task: None)
        assert 55 * MB < (watch.measure([task])[task.key] or 0) < 150 * MB


MAP = """
import mmap, sys, tempfile, time
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(1) * (60 << 20))
    file.flush()
    private = {"shared": mmap.MAP_SHARED, "written": mmap.MAP_PRIVATE}
    kept = mmap.mmap(file.fileno(), 60 << 20, flags=private["KIND"], prot=mmap.PROT_READ | mmap.PROT_WRITE)
    for at in range(0, len(kept), 4096):
        kept[at] if "KIND" == "shared" else kept.__setitem__(at, 1)
    print("ready", flush=True)
    time.sleep(600)
"""


def test_pages_of_a_mapped_file_are_no_memory_of_its_own_until_they_are_written(
    table: TaskTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEM-1: the kernel drops what a file holds, and keeps what differs from it."""
    with run(code=MAP.replace("KIND", "shared")) as pid:
        usage = read_usage(pid)
        assert usage is not None
        assert usage.rss_bytes > 60 * MB > 30 * MB > read_own_bytes(pid) > 0
        task = add(table, pid, 40 * MB)
        watch = MemoryWatch(table, os.getpid(), lambda task: None)
        assert (watch.measure([task])[task.key] or 0) < 30 * MB
    with run(code=MAP.replace("KIND", "written")) as pid:
        assert read_own_bytes(pid) > 60 * MB
        whole = tree._read_sizes
        hidden = {"status": whole, "smaps_rollup": lambda path: {}}
        monkeypatch.setattr(tree, "_read_sizes", lambda path: hidden[path.split("/")[-1]](path))
        assert read_own_bytes(pid) > 60 * MB, "by its status, where the rollup cannot be read"


async def test_what_the_kernel_limits_is_left_to_it(
    table: TaskTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEM-2."""
    monkeypatch.setattr(memory, "read_memory_limit", lambda pid: 50 * MB)
    with run() as pid:
        add(table, pid, 50 * MB)
        assert await watch_until_killed(table, 2) == []


async def test_a_group_that_a_process_comes_into_late_counts(
    table: TaskTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEM-2: a container's process runs for a moment before its engine has put it into its group."""
    limits = iter([None])
    monkeypatch.setattr(memory, "read_memory_limit", lambda pid: next(limits, 50 * MB))
    with run() as pid:
        add(table, pid, 50 * MB)
        assert await watch_until_killed(table, 3) == []


def test_a_process_that_ends_is_not_over_its_limit(
    table: TaskTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MEM-2: a process that ended shows neither its group nor the limit that the kernel kept."""
    with run() as pid:
        task = add(table, pid, 50 * MB)

        def end_process(pid: int) -> None:
            os.kill(pid, 9)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

        monkeypatch.setattr(memory, "read_memory_limit", end_process)
        watch = MemoryWatch(table, os.getpid(), lambda task: None)
        assert watch.measure([task]) == {task.key: 0}


def test_a_process_that_is_gone_holds_nothing() -> None:
    assert read_own_bytes(2**22 + 1) == 0
