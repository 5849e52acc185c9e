"""What dies around a running container: the agent, the guardian, the runner, its monitor, the
controller. BOX-1, BOX-2, DESK-1."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.process.table import read_children, read_table
from holdfast.wire.api import Problem
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController
from tests.system.containers.conftest import mark_of
from tests.system.containers.engines import Engine, Podman
from tests.system.containers.test_pulling import kill_guardian
from tests.waits import is_alive, wait_until

MakeHost = Callable[..., Host]
pytestmark = pytest.mark.heavy
SECONDS = 40.0


def test_a_killed_agent_costs_a_container_nothing(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    key = controller.launch("count", "150", "3", image=image)
    pid = controller.wait_running(key)
    first = host.agent_pid()
    os.kill(first, signal.SIGKILL)
    second = host.agent_pid(but=first)
    controller.pids.pop(key)
    assert controller.wait_running(key) == pid
    os.kill(second, signal.SIGKILL)
    host.agent_pid(but=second)
    assert len(engine.containers(mark_of(host))) == 1
    assert controller.wait_end(key, SECONDS).exit_code == 3
    controller.wait_logs(key)
    assert controller.log_of(key) == b"".join(b"line %d\n" % number for number in range(150))


def test_an_end_that_no_agent_saw_is_reported_by_the_next(
    controller: FakeController, host: Host, image: str
) -> None:
    key = controller.launch("count", "60", "3", image=image)
    pid = controller.wait_running(key)
    agent = host.agent_pid()
    os.kill(agent, signal.SIGSTOP)
    wait_until(lambda: not is_alive(pid))
    os.kill(agent, signal.SIGKILL)
    assert controller.wait_end(key, SECONDS).exit_code == 3


@pytest.mark.parametrize("together", [False, True], ids=["guardian", "guardian and agent"])
def test_a_killed_guardian_s_container_is_gone_or_its_task_is_held_when_the_host_takes_work_again(
    controller: FakeController, host: Host, image: str, engine: Engine, together: bool
) -> None:
    key = controller.launch("family", image=image)
    pid = controller.wait_running(key)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    family = [pid, *find_below(pid)]
    assert len(family) == 3  # the init, the program, its child
    mark = mark_of(host)
    agent = host.agent_pid()
    if together:  # a stopped agent would not do: the kernel wakes what its parent's death leaves stopped and orphaned
        os.kill(host.guardian_pid, signal.SIGSTOP)
        os.kill(agent, signal.SIGKILL)
    kill_guardian(host)
    if together:
        assert any(is_alive(p) for p in family), "nothing was left behind: this test tests nothing"
    else:
        wait_until(lambda: not any(is_alive(p) for p in family))
        wait_until(lambda: not is_alive(agent))
    assert engine.containers(mark), "its record was left behind, or this test tests nothing"
    seen: list[
        tuple[list[str], list[int]]
    ] = []  # engines take long to remove what lost its monitor

    def look(path: str) -> None:
        if path.endswith("register"):
            seen.append((engine.containers(mark), [p for p in family if is_alive(p)]))

    controller.fail = look  # type: ignore[assignment]  # it fails nothing, and looks
    controller.known.clear()
    host.start()
    controller.wait(lambda: len(controller.registrations) > 1, SECONDS)
    assert [alive for _, alive in seen] == [[]] * len(seen)
    held = [request.held for request in controller.registrations[1:]]
    for (left, _), named in zip(seen, held, strict=False):
        assert not left or key in named, "what may still be there keeps its lease (DESK-1)"
    controller.wait(lambda: not controller.registrations[-1].held, SECONDS)
    assert engine.containers(mark) == []
    again = controller.launch("exit", "0", epoch=2, image=image)
    assert controller.wait_end(again, SECONDS).succeeded


def find_below(pid: int) -> list[int]:
    """Every process below one, seen from outside."""
    table = read_table()
    found: list[int] = []
    edge = [pid]
    while edge:
        edge = [entry.pid for entry in table.values() if entry.ppid in edge]
        found += edge
    return found


def find_runner(host: Host) -> int:
    """The runner's pid."""
    children = read_children(host.guardian_pid) or []
    for pid in (p for child in children for p in (child, *(read_children(child) or []))):
        if b"containers.runner" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise AssertionError("no runner")


def test_a_killed_runner_takes_its_container_with_it(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    """GANG-3: the end is told when the container is gone, not when its runner is."""
    key = controller.launch("deaf", image=image)
    pid = controller.wait_running(key)
    os.kill(find_runner(host), signal.SIGKILL)
    facts = controller.wait_end(key, SECONDS)
    assert not is_alive(pid)
    assert engine.containers(mark_of(host)) == []
    assert facts.signal == 9
    assert not facts.stopped


def test_a_killed_monitor_leaves_no_container_either(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    key = controller.launch("deaf", image=image)
    pid = controller.wait_running(key)
    monitor = next(entry.ppid for entry in read_table().values() if entry.pid == pid)
    name = {"podman": b"conmon", "docker": b"containerd-shim"}[engine.kind]
    assert name in Path(f"/proc/{monitor}/cmdline").read_bytes()
    os.kill(monitor, signal.SIGKILL)
    controller.preempt(key, grace_seconds=1.0)
    facts = controller.wait_end(key, SECONDS)
    assert facts.stopped or facts.runtime_error
    assert not is_alive(pid)
    assert engine.containers(mark_of(host)) == []


def test_a_lost_client_does_not_end_its_container(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    """A client may be killed for memory; what runs goes on, and its exit code is not lost."""
    key = controller.launch("polite", image=image)
    pid = controller.wait_running(key)
    # podman names the process before it lets it begin: a client lost in between starts nothing.
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    (client,) = find_clients(host, "start")
    os.kill(client, signal.SIGKILL)
    controller.wait(
        lambda: b"client is gone and the container is not" in controller.log_of(key, "stderr"),
        SECONDS,
    )
    assert is_alive(pid)
    wait_until(lambda: find_clients(host, "attach"))
    controller.preempt(key, grace_seconds=60.0)
    facts = controller.wait_end(key, SECONDS)
    assert (facts.exit_code, facts.stopped) == (5, True)


def test_what_is_said_after_a_client_was_lost_is_not_lost(
    controller: FakeController, host: Host, image: str
) -> None:
    """Another client takes its place; only what was said between the two is gone."""
    key = controller.launch("count", "100000", "3", image=image)
    controller.wait(lambda: b"line 5\n" in controller.log_of(key), SECONDS)
    (client,) = find_clients(host, "start")
    os.kill(client, signal.SIGKILL)
    controller.wait(
        lambda: b"client is gone and the container is not" in controller.log_of(key, "stderr"),
        SECONDS,
    )
    heard = len(controller.log_of(key))
    controller.wait(lambda: len(controller.log_of(key)) > heard + 1500, SECONDS)
    controller.preempt(key, grace_seconds=60.0)
    assert controller.wait_end(key, SECONDS).exit_code == 128 + 15


def find_clients(host: Host, verb: str) -> list[int]:
    """Clients of the runtime below the runner, at this verb."""
    found = []
    for child in read_children(find_runner(host)) or []:
        with contextlib.suppress(OSError):
            if verb.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
                found.append(child)
    return found


def test_a_container_that_somebody_removes_has_not_succeeded(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    """`rm --force` by hand kills and then removes. A look in between shows the kill, a look
    afterwards shows nothing."""
    key = controller.launch("saver", image=image)
    pid = controller.wait_running(key)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    (name,) = engine.containers(mark_of(host))
    engine.run("rm", "--force", name)
    facts = controller.wait_end(key, SECONDS)
    assert not facts.succeeded
    assert facts.exit_code == 137 or "removed from outside" in (facts.runtime_error or ""), facts
    assert not is_alive(pid)


def test_an_engine_that_forgets_a_container_makes_it_no_success(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    """podman whose folder below /run is cleaned says "created", with 0 as its exit code."""
    if not isinstance(engine, Podman):
        pytest.skip("docker keeps what it knows in its daemon")
    key = controller.launch("count", "100", "3", image=image)
    controller.wait_running(key)
    controller.wait(lambda: b"line 5\n" in controller.log_of(key), SECONDS)
    engine.forget_all()
    facts = controller.wait_end(key, SECONDS)
    assert not facts.succeeded
    assert facts.exit_code is None
    assert "podman has forgotten its container" in (facts.runtime_error or "")


def test_a_container_never_outlives_its_lease(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    """The guardian ends it by its own clock while the controller is away."""
    controller.ttl_seconds = 3.0
    key = controller.launch("deaf", image=image)
    pid = controller.wait_running(key)
    controller.fail = lambda path: (503, Problem(status=503, code="unavailable", detail="away"))
    wait_until(lambda: not is_alive(pid), SECONDS)
    wait_until(lambda: engine.containers(mark_of(host)) == [], SECONDS)
    controller.fail = lambda path: None
    facts = controller.wait_end(key, SECONDS)
    assert facts.trip is not None
    assert facts.trip.exit_code == 77


def test_a_host_that_shuts_down_stops_its_containers_in_order(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    key = controller.launch("polite", image=image)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    mark = mark_of(host)
    assert host.stop() == 0
    facts = controller.ends[key]
    assert (facts.exit_code, facts.stopped) == (5, True)
    assert engine.containers(mark) == []


def test_the_container_of_another_task_is_left_alone(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    """Every unknown orphan is ascribed to a plain task without a group, the only suspect: podman's
    monitors must not be among them."""
    boxed = controller.launch("plain", job="boxed", image=image)
    pid = controller.wait_running(boxed)
    for number in range(3):
        key = controller.launch("/bin/sh", "-c", "(sleep 600 &) ; exit 2", job=f"bare{number}")
        assert controller.wait_end(key, SECONDS).exit_code == 2
    assert is_alive(pid)
    assert len(engine.containers(mark_of(host))) == 1
    controller.preempt(boxed, hard=True)
    assert controller.wait_end(boxed, SECONDS).stopped
