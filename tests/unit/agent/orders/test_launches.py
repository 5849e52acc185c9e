"""SYNC-4, EARLY-1: launches that are prepared before their order is on record."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.agent.folders import ORDER_FILE, OUT_FOLDER, READY_FOLDERS, WorkFolders
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.orders.commands import Commands
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.core.ids import TaskKey
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import AlikeTask, CheckpointOffer, LaunchOrder, SyncAnswer
from holdfast.wire.guardian import decode_request
from tests.unit.agent.orders.test_exit_facts import KEY, Line, commands, line, order, table

__all__ = ["commands", "line", "table"]


@pytest.fixture
def sent(line: Line, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Messages that were made before they were sent."""
    sent: list[bytes] = []
    monkeypatch.setattr(line, "_send", sent.append)
    return sent


def hear(commands: Commands, *orders: LaunchOrder, foretold: bool = False) -> float:
    """Have an answer prepared, or carried out."""
    answer, now = SyncAnswer(launch=list(orders)), read_boottime()
    if foretold:
        commands.prepare(answer, started_at=now)
    else:
        commands.carry_out(answer, started_at=now, newest=True)
    return now


def test_what_was_prepared_is_launched_as_it_is(
    commands: Commands, line: Line, table: TaskTable, sent: list[bytes], tmp_path: Path
) -> None:
    asked = order()
    hear(commands, asked, foretold=True)
    assert (len(table), line.said, sent) == (0, [], []), "no report tells of it, and nothing runs"
    made = (tmp_path / "tasks" / f"{KEY.job_id}.{KEY.rank}.{KEY.epoch}" / ORDER_FILE).stat()
    hear(commands, asked)
    commands.early.drop()
    task = table.get(KEY)
    assert task is not None
    assert task.order is not None
    assert task.order.master_port > 0
    assert (task.folder / ORDER_FILE).stat() == made, "it is written once"
    (frame,) = sent
    launch = decode_request(frame[4:])
    assert launch.key == KEY
    assert launch.deadline == task.deadline
    assert launch.env["MASTER_PORT"] == str(task.order.master_port)
    assert not line.said
    hear(commands, asked)
    assert len(sent) == 1


def test_what_does_not_come_on_record_leaves_nothing(
    commands: Commands, line: Line, table: TaskTable, tmp_path: Path
) -> None:
    hear(commands, order(), foretold=True)
    commands.early.drop()
    assert not list((tmp_path / "tasks").iterdir())
    commands.places.works.prepare()
    assert {path.name for path in (tmp_path / "work").iterdir()} == set(READY_FOLDERS)
    assert (len(table), line.said) == (0, [])
    hear(commands, order())
    assert len(line.said) == 1, "it may come after all"


def test_another_order_of_the_same_key_is_prepared_anew(
    commands: Commands, line: Line, table: TaskTable, sent: list[bytes]
) -> None:
    hear(commands, order(), foretold=True)
    hear(commands, msgspec.structs.replace(order(), argv=["y"]))
    commands.early.drop()
    assert not sent
    assert [said.argv for said in line.said] == [["y"]]
    task = table.get(KEY)
    assert task is not None
    assert (task.folder / OUT_FOLDER).is_dir(), "the folder is the task's now"
    assert (task.folder / ORDER_FILE).stat().st_size


def test_an_agent_that_is_killed_meanwhile_has_launched_nothing(
    commands: Commands, tmp_path: Path
) -> None:
    hear(commands, order(), foretold=True)
    followed: list[AgentTask] = []
    later = TaskTable(tmp_path)
    Housekeeper(later, WorkFolders(tmp_path / "work")).take_leftovers(1.0, followed.append)
    assert (followed, len(later), list((tmp_path / "tasks").iterdir())) == ([], 0, [])


@pytest.mark.parametrize("why", ["known", "closing", "late"])
def test_what_is_not_launched_any_more_is_not_prepared_or_undone(
    commands: Commands, line: Line, table: TaskTable, sent: list[bytes], tmp_path: Path, why: str
) -> None:
    if why == "known":
        hear(commands, order())
    elif why == "closing":
        commands.closing = True
    hear(commands, order(), foretold=True)
    assert len(list((tmp_path / "tasks").iterdir())) == (why != "closing")
    if why == "late":
        commands.carry_out(
            SyncAnswer(launch=[order()]), started_at=read_boottime() - 900, newest=True
        )
    else:
        hear(commands, order())
    commands.early.drop()
    assert not sent
    assert len(list((tmp_path / "tasks").iterdir())) == len(line.said) == (why == "known")


@pytest.mark.parametrize(
    "more",
    [
        {"world_size": 2, "local_world_size": 2},
        {"image": "i"},
        {"executor": "e"},
        {"env": {"HOLDFAST_OUT_DIR": "out"}},
        {"checkpoint": CheckpointOffer(number=1, size=1, sha256="0" * 64)},
        {"also": [AlikeTask(TaskKey("b", 0, 1), 1, [], 300.0)]},
    ],
)
def test_what_does_more_than_a_plain_start_is_not_prepared(
    commands: Commands, tmp_path: Path, more: dict[str, object]
) -> None:
    hear(commands, order(**more), foretold=True)
    assert not list((tmp_path / "tasks").iterdir())
    assert not list((tmp_path / "work").iterdir())


@pytest.mark.parametrize("fails", ["order", "frame"])
def test_what_cannot_be_prepared_is_left_to_its_answer(
    commands: Commands, line: Line, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    asked = order()
    with monkeypatch.context() as patch:
        if fails == "order":
            patch.setattr(os, "mkdir", fail)
        else:
            asked = msgspec.structs.replace(asked, argv=["x" * (17 << 20)])
        hear(commands, asked, foretold=True)
    assert not list((tmp_path / "tasks").iterdir())
    hear(commands, order())
    assert len(line.said) == 1


def fail(*_: object) -> None:
    raise OSError("no space left on device")
