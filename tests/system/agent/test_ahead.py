"""Orders that a host holds until a slot is free (AHEAD-2): a real guardian, a real agent, and kill -9."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.core.ids import TaskKey
from holdfast.process.syscalls import read_boottime
from holdfast.wire.api import Problem
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController
from tests.waits import wait_exit, wait_until

AWAY = (503, Problem(status=503, code="unavailable", detail="away"))


class Slot:
    """A host with one slot: a task that has it until `free`, and one that is held for it."""

    def __init__(self, controller: FakeController, host: Host, folder: Path) -> None:
        self.controller, self.host, self.folder = controller, host, folder
        gate = folder / "gate"
        self.first = controller.launch(
            "sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done", job="first", cpu_slots=1
        )
        controller.wait_running(self.first)
        self.held = self.hold("held")
        self.wait_held(self.held)

    def hold(self, job: str, epoch: int = 1) -> TaskKey:
        key = self.controller.launch(
            "sh",
            "-c",
            f"echo ran >> {self.folder / job}; until [ -e {self.folder / 'end'} ]; do sleep 0.02; "
            "done",
            job=job,
            epoch=epoch,
            cpu_slots=1,
            ahead=True,
        )
        return key

    def wait_held(self, key: TaskKey) -> None:
        self.controller.wait(lambda: self.controller.states.get(key) == "held")

    def kill_agent(self) -> None:
        """Kill the agent, and wait until the next one is in step with the controller."""
        agent = self.host.agent_pid()
        os.kill(agent, signal.SIGKILL)
        killed_at = int(read_boottime() * 1000)  # an agent counts its calls from its start
        self.host.agent_pid(but=agent)
        self.controller.wait(lambda: self.controller.newest_seq > killed_at)

    def free(self) -> None:
        (self.folder / "gate").touch()

    def runs(self, job: str = "held") -> list[str]:
        path = self.folder / job
        return path.read_text().split() if path.exists() else []

    def finish(self, key: TaskKey) -> None:
        (self.folder / "end").touch()
        assert self.controller.wait_end(key).exit_code == 0


@pytest.fixture
def slot(controller: FakeController, host: Host, tmp_path: Path) -> Slot:
    return Slot(controller, host, tmp_path)


def test_a_held_order_begins_while_the_controller_is_away(slot: Slot) -> None:
    slot.controller.fail = lambda path: AWAY
    slot.free()
    wait_until(lambda: slot.runs() == ["ran"], what="it began without a word of the controller")
    slot.controller.fail = lambda path: None
    slot.finish(slot.held)
    assert slot.runs() == ["ran"]
    assert slot.controller.returned == set()


@pytest.mark.parametrize("how", ["recall", "preempt"])
def test_a_held_order_that_is_asked_back_never_begins(slot: Slot, how: str) -> None:
    if how == "recall":
        slot.controller.recall(slot.held)
    else:
        slot.controller.preempt(slot.held)
    slot.controller.wait(lambda: slot.held in slot.controller.returned)
    slot.free()
    slot.controller.wait_end(slot.first)
    again = slot.hold("other")
    wait_until(lambda: slot.runs("other") == ["ran"], what="the slot goes to another")
    slot.finish(again)
    assert slot.runs() == []
    assert slot.held not in slot.controller.ends


def test_a_recall_that_comes_after_it_began_changes_nothing(slot: Slot) -> None:
    slot.free()
    slot.controller.wait_running(slot.held)
    syncs = len(slot.controller.syncs)
    slot.controller.recall(slot.held)
    slot.controller.wait(lambda: len(slot.controller.syncs) > syncs + 2)
    slot.finish(slot.held)
    assert slot.runs() == ["ran"]
    assert slot.controller.returned == set()


def test_a_recall_of_an_order_that_never_came_is_answered(slot: Slot) -> None:
    key = TaskKey("never", 0, 1)
    slot.controller.recall(key)
    slot.controller.wait(lambda: key in slot.controller.returned)
    slot.controller.launch("true", job="never", cpu_slots=1)
    assert slot.controller.wait_end(key).trip is not None, "KEEP-2: it is over here"


def test_an_order_that_waits_too_long_is_given_back(slot: Slot) -> None:
    with slot.controller.changed:
        slot.controller.run_ahead_seconds = 0.01
    slot.controller.wait(lambda: slot.held in slot.controller.returned)
    slot.free()
    slot.controller.wait_end(slot.first)
    assert slot.runs() == []


def test_a_host_that_shuts_down_gives_back_what_it_holds(slot: Slot) -> None:
    slot.host.stop()
    slot.controller.wait(lambda: slot.controller.left)
    assert slot.held in slot.controller.returned
    assert slot.runs() == []


def test_an_agent_killed_with_an_order_in_its_hands_is_offered_it_again(slot: Slot) -> None:
    slot.kill_agent()
    assert slot.runs() == []
    slot.controller.states.clear()
    held = slot.hold("held")
    assert held == slot.held
    slot.wait_held(held)
    slot.free()
    wait_until(lambda: slot.runs() == ["ran"], what="it begins under the next agent")
    slot.finish(held)
    assert slot.runs() == ["ran"]


@pytest.mark.parametrize("times", range(3))
def test_an_agent_killed_as_an_order_begins_runs_it_once(slot: Slot, times: int) -> None:
    """At any line of the begin: the guardian holds it, or it is offered again (AGT-1)."""
    slot.free()
    if times:
        wait_until(lambda: times == 1 or slot.runs() == ["ran"], what="it begins")
    slot.kill_agent()
    fields = {"job": "held", "cpu_slots": 1, "ahead": True}
    slot.controller.launch("sh", "-c", f"echo ran >> {slot.folder / 'held'}", **fields)
    (slot.folder / "end").touch()
    slot.controller.wait(lambda: slot.held in slot.controller.ends)
    assert slot.runs() == ["ran"], "once, whichever agent began it"


def test_nothing_held_outlives_its_guardian(slot: Slot) -> None:
    os.kill(slot.host.guardian_pid, signal.SIGKILL)
    assert slot.host.process is not None
    wait_exit(slot.host.process, 5)
    slot.free()
    before = len(slot.controller.registrations)
    slot.host.start()
    slot.controller.wait(lambda: len(slot.controller.registrations) > before)
    assert slot.runs() == [], "the next incarnation begins nothing of the one before"
