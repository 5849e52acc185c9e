"""How much a host holds ahead (AHEAD-1), and which order begins when a slot is free (AHEAD-2)."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent import tasks
from holdfast.agent.folders import WorkFolders
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.orders.ahead import AheadDesk, count_wanted
from holdfast.agent.orders.commands import Commands
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent
from holdfast.wire.agent import MAX_AHEAD, LaunchOrder, SyncAnswer

ORDER = LaunchOrder(
    key=TaskKey("j", 0, 1), attempt=1, name="n", queue="q", project="p", argv=["x"], cpu_slots=1
)
seconds = st.floats(0, 10)


@given(
    st.integers(0, 64),
    st.lists(st.tuples(st.integers(0, 4), seconds), max_size=20),
    st.floats(0, 10),
    st.floats(0, 1),
)
def test_no_more_is_held_than_slots_turn_over_in_time(
    slots: int, busy: list[tuple[int, float]], mean: float, limit: float
) -> None:
    wanted = count_wanted(slots, busy, mean, limit)
    quick = slots - sum(count for count, age in busy if age > limit)
    assert 0 <= wanted <= MAX_AHEAD * max(0, quick)
    assert wanted * mean <= limit * max(0, quick) + 1e-9, "the last one waits longer than `limit`"
    if limit == 0.0 or mean == 0.0:
        assert wanted == 0


@pytest.mark.parametrize(
    ("slots", "busy", "mean", "wanted"),
    [
        (16, [], 0.003, 128),  # bounded by the slots
        (2, [], 0.01, 10),
        (16, [], 0.1, 8),  # by 50 ms of work
        (16, [], 1.0, 0),  # long jobs: none
        (16, [], 0.0, 0),  # nothing has ended yet
        (16, [(1, 60.0)] * 14, 0.01, 10),  # two slots turn over
        (4, [(4, 60.0)], 0.01, 0),
    ],
)
def test_a_host_holds_about_fifty_milliseconds_of_work(
    slots: int, busy: list[tuple[int, float]], mean: float, wanted: int
) -> None:
    assert count_wanted(slots, busy, mean, 0.05) == wanted


def _desk(tmp_path: Path, slots: int) -> tuple[TaskTable, AheadDesk]:
    table = TaskTable(tmp_path)
    table.open()
    desk = AheadDesk(table)
    desk.slots, desk.seconds = slots, 0.05
    return table, desk


def _take(table: TaskTable, job: str, *, slots: int = 1, launched: bool = False) -> AgentTask:
    order = msgspec.structs.replace(ORDER, key=TaskKey(job, 0, 1), cpu_slots=slots)
    task = table.add(order, 0.0)
    if launched:
        task.move(AgentTaskEvent.LAUNCH)
        task.launched_at = 1.0
    return task


def test_orders_begin_in_their_order_when_a_slot_is_free(tmp_path: Path) -> None:
    table, desk = _desk(tmp_path, 2)
    wide = _take(table, "wide", slots=2, launched=True)
    held = [_take(table, f"h{n}") for n in range(3)]
    for task in held:
        assert desk.must_wait(task)
        desk.hold(task, 5.0)
    assert (list(desk.list_next()), len(desk)) == ([], 3)
    wide.move(AgentTaskEvent.END)
    desk.note_end(wide, 1.01)
    assert list(desk.list_next()) == held[:2]
    for task in held[:2]:
        desk.let_go(task)
        task.move(AgentTaskEvent.LAUNCH)
    assert list(desk.list_next()) == [], "both slots are taken again"
    assert list(desk.list_all()) == held[2:]
    assert list(desk.list_late(5.0 + desk.late_seconds)) == held[2:]
    assert list(desk.list_late(4.9 + desk.late_seconds)) == []


def test_the_mean_follows_what_tasks_take_here(tmp_path: Path) -> None:
    table, desk = _desk(tmp_path, 8)
    assert desk.count_wanted(0.0) == 0
    for n in range(40):
        task = _take(table, f"quick{n}", launched=True)
        task.move(AgentTaskEvent.END)
        desk.note_end(task, 1.01)
    assert desk.count_wanted(2.0) == 39
    for n in range(40):
        task = _take(table, f"slow{n}", launched=True)
        task.move(AgentTaskEvent.END)
        desk.note_end(task, 9.0)
    assert desk.count_wanted(2.0) == desk.wanted == 0


def test_ends_are_told_before_the_slots_would_wait(tmp_path: Path) -> None:
    """AHEAD-4."""
    table, desk = _desk(tmp_path, 2)
    assert desk.find_pause(0.01, 0.01) == 0.0, "no short tasks follow each other"
    first = _take(table, "first", launched=True)
    first.move(AgentTaskEvent.END)
    desk.note_end(first, 1.0125)
    assert desk.count_wanted(2.0) == 8
    assert desk.find_pause(0.01, 0.0) == 0.0, "nothing is held, and no answer is under way"
    assert desk.find_pause(0.01, 0.004) == 0.004
    for n in range(4):
        desk.hold(_take(table, f"h{n}"), 5.0)
    assert desk.find_pause(0.005, 0.0) == pytest.approx(0.020)  # of 25 ms of work
    assert desk.find_pause(0.05, 0.0) == 0.0, "the answer comes too late anyway"
    for n in range(4, 8):
        desk.hold(_take(table, f"h{n}"), 5.0)
    assert desk.find_pause(0.005, 1.0) == desk.find_pause(0.005, 0.0) == tasks.PACE_SECONDS


def _commands(table: TaskTable, desk: AheadDesk, reports: list[str]) -> Commands:
    """Return the part of an agent that carries out orders, with nothing around it."""
    unused: Any = None
    commands = Commands(
        table=table,
        link=unused,
        places=unused,
        changed=lambda: reports.append("changed"),
        launched=unused,
        poked=unused,
        forgotten=unused,
        containers=unused,
        checkpoints=unused,
    )
    commands.ahead = desk
    return commands


def _answer(*keys: TaskKey) -> SyncAnswer:
    return SyncAnswer(recall=list(keys))


def _carry_out(commands: Commands, answer: SyncAnswer) -> None:
    commands.link = SimpleNamespace(  # type: ignore[assignment]  # nothing is launched
        ack=lambda keys: None, extend=lambda live: None, together=contextlib.nullcontext
    )
    commands.carry_out(answer, started_at=0.0, newest=True)


def test_the_next_agent_reports_what_the_one_before_gave_back(tmp_path: Path) -> None:
    """AHEAD-2: it is offered the order again, and must not begin it: the report of the return may
    still be under way."""
    table, desk = _desk(tmp_path, 1)
    task = _take(table, "held")
    desk.hold(task, 0.0)
    reports: list[str] = []
    _carry_out(_commands(table, desk, reports), _answer(task.key))
    assert reports == ["changed"]
    after = TaskTable(tmp_path)
    after.open()
    Housekeeper(after, WorkFolders(tmp_path)).take_leftovers(1.0, lambda task: None)
    (again,) = after
    assert (again.report(1.0).state, again.live) == ("returned", False)


def test_an_order_is_kept_where_the_disk_does_not_take_that_it_was_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, desk = _desk(tmp_path, 1)
    task = _take(table, "held")
    desk.hold(task, 0.0)

    def fail(path: Path, data: bytes, **_: object) -> None:
        raise OSError(28, "No space left on device")

    reports: list[str] = []
    commands = _commands(table, desk, reports)
    with monkeypatch.context() as patch:
        patch.setattr(tasks, "write_atomic", fail)
        _carry_out(commands, _answer(task.key))
    assert (reports, task.report(1.0).state, list(desk.list_all())) == ([], "held", [task])
    _carry_out(commands, _answer(task.key))  # the controller asks again
    assert (task.report(1.0).state, list(desk.list_all())) == ("returned", [])
