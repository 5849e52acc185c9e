"""A signal that ends a host reaches its guardian, its agent, what that asks drivers with, and its
tasks, in any order: scancel, a service manager that signals a whole group, killall."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.core.causes import Cause
from holdfast.core.ids import TaskKey
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController, serve
from tests.waits import is_alive, wait_exit, wait_until

TERM, INT, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGKILL
SAVING = "trap 'sleep 0.4; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.02; done"
PLAIN = "echo ready; exec sleep 300"
MakeHost = Callable[..., Host]
pytestmark = pytest.mark.slow


def list_children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        return [int(word) for word in text.split()]
    return []


class Case:
    """One host with a task that saves in its grace and one that dies of any signal, and the order
    in which they are told."""

    def __init__(self, make_host: MakeHost, name: str, steps: Sequence[tuple[str, int]]) -> None:
        self.name = f"{name}: " + ", ".join(f"{who} {signal.Signals(n).name}" for who, n in steps)
        self.steps = steps
        self.controller = FakeController()
        self.server = serve(self.controller)
        self.host = make_host(self.server.__enter__()).start()
        self.saving = self.launch(SAVING, "saving")
        self.plain = self.launch(PLAIN, "plain")

    def launch(self, script: str, job: str) -> TaskKey:
        return self.controller.launch("/bin/sh", "-c", script, job=job)

    def tell_all(self) -> None:
        for key in (self.saving, self.plain):
            self.controller.wait_running(key)
            wait_until(lambda key=key: b"ready" in self.controller.log_of(key), what=self.name)
        agent = self.host.agent_pid()
        pids = {
            "guardian": [self.host.guardian_pid],
            "agent": [agent],
            "probes": list_children(agent),
            "tasks": [self.controller.pids[key] for key in (self.saving, self.plain)],
        }
        for who, number in self.steps:
            for pid in pids[who]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def list_hasty(self) -> list[TaskKey]:
        """What a goodbye said to live."""
        goodbyes = [sync for sync in self.controller.syncs if sync.leaving]
        return [task.key for sync in goodbyes for task in sync.tasks if task.state != "ended"]


@pytest.fixture
def make_case(make_host: MakeHost) -> Iterator[Callable[..., Case]]:
    cases: list[Case] = []

    def make(name: str, steps: Sequence[tuple[str, int]]) -> Case:
        cases.append(Case(make_host, name, steps))
        return cases[-1]

    yield make
    for case in cases:
        case.host.end()
        case.server.__exit__(None, None, None)


def test_tasks_have_their_grace_and_are_told_before_the_goodbye(
    make_case: Callable[..., Case],
) -> None:
    """AGT-5, GUARD-9. The agent is told to go, or dies; tasks are told once more, or not."""
    orders = [*itertools.permutations(("guardian", "agent", "tasks"))]
    kinds = itertools.cycle([(TERM, TERM), (TERM, KILL), (INT, TERM), (TERM, INT)])
    cases = []
    for order, (guardian, agent) in zip(orders, kinds, strict=False):
        told = {"guardian": guardian, "agent": agent, "tasks": TERM}
        cases.append(make_case("all", [("probes", TERM), *((who, told[who]) for who in order)]))
    # `timeout` tells its child, and then its child's group: the second is no second signal.
    twice = [("guardian", TERM), ("agent", TERM), ("guardian", TERM), ("agent", TERM)]
    cases.append(make_case("twice", twice))
    for case in cases:
        case.tell_all()
    for case in cases:
        assert wait_exit(case.host.process, 30) == 0, case.name
        for key in (case.saving, case.plain):
            facts = case.controller.ends[key]
            found = (facts.stopped, facts.stop_cause)
            assert found == (True, Cause.HOST_DRAINED), (case.name, facts)
        assert case.controller.log_of(case.saving).endswith(b"saved\n"), case.name
        assert case.list_hasty() == [], case.name
        assert case.controller.left, case.name


def test_a_guardian_that_is_killed_says_no_goodbye(make_case: Callable[..., Case]) -> None:
    """Its tasks die with it, and only the next incarnation, or the lease, tells the controller."""
    orders = [[("guardian", KILL), ("agent", TERM)], [("agent", TERM), ("guardian", KILL)]]
    cases = [make_case("killed", order) for order in orders]
    for case in cases:
        case.tell_all()
    for case in cases:
        assert wait_exit(case.host.process, 20) == -KILL, case.name
        tasks = [case.controller.pids[key] for key in (case.saving, case.plain)]
        wait_until(lambda tasks=tasks: not any(map(is_alive, tasks)), what=case.name)
        assert not case.controller.left, case.name


def test_a_task_that_dies_of_term_by_itself_is_no_shutdown(
    controller: FakeController, host: Host
) -> None:
    key = controller.launch("/bin/sh", "-c", "kill -TERM $$")
    facts = controller.wait_end(key)
    assert (facts.signal, facts.stopped, facts.stop_cause) == (15, False, None)
