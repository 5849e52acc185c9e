"""Kills: what a task hears after its watchdog tripped."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import msgspec
import pytest

from holdfast.agent.link import GuardianLink
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.checkpoints import out_path
from holdfast.agent.watch.forensics import ForensicsSender
from holdfast.agent.watch.kills import Kills
from holdfast.core.causes import Watchdog
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskEvent
from holdfast.core.watchdogs import TaskWatch
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.wire.agent import LaunchOrder
from holdfast.work.stop_word import NAME

KEY = TaskKey("job", 0, 1)
GRACE = 0.2
ORDER = LaunchOrder(
    key=KEY,
    attempt=1,
    name="n",
    queue="q",
    project="p",
    argv=["x"],
    watch=WatchSettings(grace_seconds=GRACE, forensics_seconds=0.0),
)


class Link(GuardianLink):
    """Remembers the grace of each stop."""

    def __init__(self) -> None:
        super().__init__()
        self.graces: list[float] = []

    def stop(self, key: TaskKey, grace_seconds: float) -> None:
        self.graces.append(grace_seconds)


@pytest.fixture
def task(tmp_path: Path) -> AgentTask:
    task = AgentTask(KEY, tmp_path, ORDER, 0.0)
    task.move(AgentTaskEvent.LAUNCH)
    task.move(AgentTaskEvent.RUN)
    return task


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def kills(tmp_path: Path, link: Link) -> Kills:
    table = TaskTable(tmp_path)
    table.save = lambda task, now: None  # type: ignore[method-assign]  # no file is looked at
    return Kills(table, link, cast(ForensicsSender, None))


@pytest.mark.parametrize("dog", list(Watchdog))
async def test_only_a_task_that_was_left_or_reached_its_time_limit_gets_its_grace(
    kills: Kills, link: Link, task: AgentTask, dog: Watchdog
) -> None:
    """AGT-6."""
    folder = out_path(task)
    folder.mkdir()
    kills.take_trip(task, make_trip(dog, "why", {}))
    first = {Watchdog.IDLE: [GRACE], Watchdog.TIME_LIMIT: [GRACE], Watchdog.OPERATOR_STOP: []}
    assert link.graces == first.get(dog, [0.0])
    assert (folder / NAME).exists() == (link.graces == [GRACE])  # the word of `stopping`
    assert task.saved.kill_sent is (dog is not Watchdog.OPERATOR_STOP)


async def test_a_task_that_was_left_and_stays_is_killed_after_its_grace(
    kills: Kills, link: Link, task: AgentTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AGT-2, AGT-6."""
    timers: list[tuple[float, Callable[..., None]]] = []
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "call_later", lambda *words: timers.append(words[:2]))
    kills.take_trip(task, make_trip(Watchdog.IDLE, "why", {}))
    ((seconds, then),) = timers
    assert seconds > GRACE
    then(task)
    assert link.graces == [GRACE, 0.0]


async def test_a_call_at_its_time_limit_is_killed_at_once(
    kills: Kills, link: Link, task: AgentTask
) -> None:
    """AGT-6."""
    task.order = msgspec.structs.replace(ORDER, executor="family")
    kills.take_trip(task, make_trip(Watchdog.TIME_LIMIT, "why", {}))
    assert link.graces == [0.0]


@pytest.mark.parametrize(
    ("dog", "grace"), [(Watchdog.IDLE, GRACE), (Watchdog.TIME_LIMIT, GRACE), (Watchdog.STALL, 0.0)]
)
async def test_the_next_agent_ends_it_as_the_one_that_gave_the_verdict_would(
    kills: Kills,
    link: Link,
    task: AgentTask,
    dog: Watchdog,
    grace: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trip = make_trip(dog, "why", {})
    monkeypatch.setattr(TaskWatch, "trip", property(lambda watch: trip))
    kills.go_on(task)
    assert link.graces == [grace]
