"""What a host finds that it cannot do, and how it tries itself."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.abilities import Abilities, Hindrances, try_start
from holdfast.agent.containers.left import may_still_run, read_left
from holdfast.agent.containers.plan import RunnerStatus, mark_path, write_status
from holdfast.agent.containers.tasks import ContainerOptions, ContainerTasks
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.wire.agent import LaunchOrder
from tests.waits import within

KEY = TaskKey("job", 0, 1)
ORDER = LaunchOrder(
    key=KEY, attempt=1, name="n", queue="q", project="p", argv=["x"], image="a", gpus=[2, 3]
)
DEAD = 2**22 + 1  # above every pid


def make_containers(folder: Path) -> ContainerTasks:
    return ContainerTasks(
        folder, mark="m", options=ContainerOptions(), begun=lambda task, pid, at: None
    )


def make_docker(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A docker that answers while the returned file is there."""
    tools, up = folder / "tools", folder / "up"
    tools.mkdir()
    (tools / "docker").write_text(f"#!/bin/sh\n[ -e {up} ]\n")
    (tools / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    return up


def test_a_trial_leaves_nothing_behind(tmp_path: Path) -> None:
    assert try_start(tmp_path) is None
    assert [list((tmp_path / name).iterdir()) for name in ("tasks", "work")] == [[], []]


@pytest.mark.parametrize("name", ["tasks", "work"])
def test_a_trial_takes_the_road_of_a_start(tmp_path: Path, name: str) -> None:
    """A job has put a file where all have their folders."""
    (tmp_path / name).touch()
    assert "Not a directory" in str(try_start(tmp_path))


def test_a_trial_names_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "Not a directory" in str(try_start(tmp_path / "file" / "tasks"))
    before = len(os.listdir("/proc/self/fd"))
    assert "Is a directory" in str(try_start(make_blocked(tmp_path)))
    assert len(os.listdir("/proc/self/fd")) == before


def make_blocked(folder: Path) -> Path:
    (folder / "tasks" / ".trial" / "stdout").mkdir(parents=True)
    return folder


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        (None, True),
        (RunnerStatus(phase="pulling"), False),
        (RunnerStatus(phase="starting"), True),
        (RunnerStatus(phase="running", pid=os.getpid()), True),
        (RunnerStatus(phase="running", pid=DEAD), False),
        (RunnerStatus(phase="running", pid=os.getpid(), removed=True), False),
    ],
)
def test_which_containers_may_still_run(
    tmp_path: Path, status: RunnerStatus | None, runs: bool
) -> None:
    """DESK-1: what is not known to be gone may run."""
    table = TaskTable(tmp_path)
    table.open()
    task = table.add(ORDER, 0.0)
    if status is not None:
        write_status(task.folder, status)
    assert not may_still_run(task), "a guardian holds it"
    task.move(AgentTaskEvent.SALVAGE)
    assert may_still_run(task) is runs


async def test_an_engine_that_is_away_costs_containers_and_their_devices_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DESK-1, ASIDE-1: a later agent knows the devices too, when the task's folder is gone."""
    up = make_docker(tmp_path, monkeypatch)
    table = TaskTable(tmp_path / "state")
    (tmp_path / "state").mkdir()
    table.open()
    task = table.add(ORDER, 0.0)
    write_status(task.folder, RunnerStatus(phase="running", pid=os.getpid()))
    task.move(AgentTaskEvent.SALVAGE)
    containers = make_containers(tmp_path / "containers")
    assert containers.find_left(table) == [KEY]
    mark_path(str(containers.folder), "docker").touch()

    def make(containers: ContainerTasks) -> Abilities:
        news = SyncWish()
        return Abilities(
            tmp_path / "t", TaskTable(tmp_path / "none"), containers, Hindrances(news), news
        )

    abilities = make(containers)
    await abilities.look_first()
    (fault,) = abilities.list_faults()
    assert (fault.part, fault.runtimes, fault.devices) == ("containers", ("any", "docker"), (2, 3))
    assert abilities.is_unswept
    containers = make_containers(tmp_path / "containers")
    assert containers.find_left([]) == [KEY]
    abilities = make(containers)
    await abilities.look_first()
    assert abilities.list_faults()[0].devices == (2, 3)
    up.touch()
    running = asyncio.create_task(abilities.run())
    async with within(30):
        while abilities.list_faults():
            await asyncio.sleep(0.05)
    running.cancel()
    assert abilities.freed.is_set()
    assert (abilities.is_unswept, read_left(containers.folder)) == (False, {})


async def test_an_engine_that_never_answered_is_set_aside_by_the_job_that_needed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_docker(tmp_path, monkeypatch)
    containers = make_containers(tmp_path / "containers")
    told: list[str] = []
    containers.unable = told.append
    assert containers.find_left([]) == []
    assert await containers.sweep([]) is None, "it was never used"
    containers.note_unable(None, "Cannot connect to the Docker daemon")
    assert told == ["Cannot connect to the Docker daemon"]
    assert containers.list_lacking() == (("any", "docker"), ())
    assert "docker does not answer" in str(await containers.sweep([]))


def test_the_kept_list_is_json(tmp_path: Path) -> None:
    """Agents of other versions read it."""
    (tmp_path / "left.json").write_bytes(
        msgspec.json.encode([{"key": msgspec.to_builtins(KEY), "devices": [1]}])
    )
    assert read_left(tmp_path) == {KEY: (1,)}
