"""What stands between a guardian and a task: it ends the task on time while Holdfast is frozen, and
it is the parent that a task may kill."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core.causes import Watchdog
from holdfast.core.facts import KEEPER_KILLED
from holdfast.core.lease import margin_seconds
from holdfast.process.keeper import SLACK_SECONDS
from holdfast.process.starter import find_starter
from holdfast.process.table import read_entry, read_name
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController
from tests.waits import is_alive, wait_until

needs_starter = pytest.mark.skipif(
    find_starter() is None, reason="the package was built without the native starter"
)
pytestmark = [pytest.mark.slow, needs_starter]
RUNAWAY = "(setsid sh -c 'echo $$; exec sleep 600' &); (trap '' TERM; sleep 600) & exec sleep 600"


@pytest.fixture
def freeze() -> Iterator[Callable[[int], None]]:
    frozen: list[int] = []

    def stop(pid: int) -> None:
        frozen.append(pid)
        os.kill(pid, signal.SIGSTOP)

    yield stop
    for pid in frozen:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_the_lease_ends_with_guardian_and_agent_frozen(
    controller: FakeController, host: Host, freeze: Callable[[int], None]
) -> None:
    """KEEPER-1: the controller may then start the next attempt, frozen as they are."""
    controller.ttl_seconds, controller.interval_seconds = 4.0, 0.5
    key = controller.launch("/bin/sh", "-c", RUNAWAY)
    pid = controller.wait_running(key)
    runaway = int(controller.wait(lambda: controller.log_of(key)))
    agent = host.agent_pid()
    freeze(host.guardian_pid)
    freeze(agent)
    wait_until(lambda: not (is_alive(pid) or is_alive(runaway)), what="the task's end")
    assert all(is_alive(frozen) for frozen in (host.guardian_pid, agent))
    assert not controller.ends
    for frozen in (host.guardian_pid, agent):
        os.kill(frozen, signal.SIGCONT)
    trip = controller.wait_end(key).trip
    assert trip is not None
    assert trip.watchdog is Watchdog.LOST_LEASE


def test_what_stops_all_that_is_called_holdfast_leaves_the_keeper(
    controller: FakeController, host: Host, freeze: Callable[[int], None]
) -> None:
    """KEEPER-1: `pkill -STOP holdfast` stops the watchers, and no keeper is one of them by name."""
    controller.ttl_seconds, controller.interval_seconds = 4.0, 0.5
    key = controller.launch("/bin/sh", "-c", "echo $PPID; exec sleep 600")
    pid = controller.wait_running(key)
    keeper = int(controller.wait(lambda: controller.log_of(key)))
    words = Path(f"/proc/{keeper}/cmdline").read_bytes()
    called = {host.guardian_pid, host.agent_pid()}
    called |= {keeper} if b"holdfast" in words or "holdfast" in read_name(keeper) else set()
    for found in called:
        freeze(found)
    wait_until(lambda: not is_alive(pid), what="the task's end")


def test_a_frozen_guardian_holds_no_lease(
    controller: FakeController, make_host: Callable[..., Host], freeze: Callable[[int], None]
) -> None:
    """HEAR-3: its agent lives, and asks for no more time for tasks whose ends nothing would tell."""
    controller.interval_seconds = 0.5
    host = make_host(frozen_seconds=4.0).start()
    key = controller.launch("/bin/sleep", "600")
    controller.wait_running(key)
    freeze(host.guardian_pid)
    controller.wait(lambda: not [task for task in controller.syncs[-1].tasks if task.key == key])
    os.kill(host.guardian_pid, signal.SIGCONT)
    controller.wait(lambda: [task for task in controller.syncs[-1].tasks if task.key == key])


def test_the_keeper_is_sooner_than_the_controller() -> None:
    """LEASE-2: the host's deadline is a margin before the lease's end, the controller's after it."""
    assert all(margin_seconds(ttl) / 2 >= SLACK_SECONDS for ttl in (15.0, 60.0, 300.0))


@pytest.mark.parametrize("number", ["KILL", "TERM", "STOP"])
def test_a_task_that_signals_its_parent_harms_itself_alone(
    controller: FakeController, host: Host, number: str
) -> None:
    """KEEPER-2, WATCH-5."""
    neighbour = controller.launch("/bin/sleep", "600", job="neighbour")
    pid = controller.wait_running(neighbour)
    key = controller.launch("/bin/sh", "-c", f"kill -{number} $PPID; sleep 0.2; exit 3", job="odd")
    facts = controller.wait_end(key)
    wanted = {"KILL": (None, 9), "TERM": (None, 15), "STOP": (3, None)}[number]
    assert (facts.exit_code, facts.signal) == wanted
    lost = KEEPER_KILLED if number == "KILL" else None
    assert (facts.stopped, facts.lost, facts.trip) == (False, lost, None)
    assert is_alive(pid)
    assert controller.states[neighbour] == "running"
    assert len(controller.registrations) == 1, "its guardian is the same"


def test_a_task_is_told_once_to_stop(controller: FakeController, host: Host) -> None:
    """KEEPER-3: its keeper passes the signal on, and the guardian does not say it again."""
    script = (
        "trap 'echo told' TERM; echo ready; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done; exit 4"
    )
    key = controller.launch("/bin/sh", "-c", script)
    controller.wait(lambda: b"ready" in controller.log_of(key))
    entry = read_entry(controller.wait_running(key))
    assert entry is not None
    assert entry.session == entry.pid
    controller.preempt(key)
    assert controller.wait_end(key).exit_code == 4
    controller.wait_logs(key)
    assert controller.log_of(key) == b"ready\ntold\n"
