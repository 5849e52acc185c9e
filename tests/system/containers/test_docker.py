"""docker's road through the runner, with a stand-in for docker: what it is asked, in which order,
and what is made of its answers.

It runs where no engine can, and does at will what a real one (the other files here) does rarely:
not to answer.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.containers.runtimes import Runtime
from holdfast.core.endings.classify import classify
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController, serve
from tests.system.cluster import read_words
from tests.system.containers.conftest import HERE, mark_of
from tests.system.containers.test_pulling import kill_guardian
from tests.unit.sources import ROOT
from tests.waits import is_alive, wait_exit, wait_until

pytestmark = pytest.mark.heavy
SECONDS = 40.0


class Engine:
    """The stand-in's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def calls(self) -> list[list[str]]:
        return [json.loads(line) for line in (self.folder / "calls").read_text().splitlines()]

    @property
    def containers(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text()) for path in self.folder.glob("*.json")]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    path = tmp_path_factory.mktemp("program") / "inside"
    subprocess.run(["gcc", "-static", "-O1", "-o", str(path), str(HERE / "inside.c")], check=True)
    return path


@pytest.fixture
def engine(tmp_path: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    folder, tools = tmp_path / "engine", tmp_path / "tools"
    folder.mkdir()
    tools.mkdir()
    script = str(HERE / "fake_docker.py")
    (tools / "docker").write_text(f'#!/bin/sh\nexec {sys.executable} -S {script} "$@"\n')
    (tools / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_DOCKER", str(folder))
    monkeypatch.setenv("FAKE_PROGRAM", str(program))
    process = subprocess.Popen([sys.executable, "-S", script, "engine", str(folder)])
    wait_until((folder / "engine").exists)
    yield Engine(folder)
    (folder / "engine").unlink()
    wait_exit(process, 10)


@pytest.fixture
def make_host(
    tmp_path: Path, controller: FakeController, engine: Engine
) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []
    with serve(controller) as url:

        def make(**fields: Any) -> Host:
            folder = tmp_path / "host"
            folder.mkdir()
            hosts.append(Host(folder, url, pass_env=["FAKE_*"], **fields))
            return hosts[-1]

        yield make
        for host in hosts:
            host.stop()
            host.end()
        assert engine.containers == []


def test_the_calls_of_one_task_in_their_order(
    controller: FakeController, host: Host, engine: Engine
) -> None:
    key = controller.launch(
        "exit",
        "7",
        image="registry.test/some:v1",
        runtime="docker",
        env={"MINE": "1"},
        secrets={"PATH": "s3cret-path"},
    )
    facts = controller.wait_end(key, SECONDS)
    assert (facts.exit_code, facts.runtime_error) == (7, None), facts
    controller.wait_logs(key)
    assert controller.log_of(key) == b"leaving\n"
    name = f"holdfast-{mark_of(host)}-job.0.1"
    verbs = [call[0] for call in engine.calls]
    order = list(dict.fromkeys(verbs))
    # The client that starts it stays with it, and beside that the engine is asked for its state:
    # either may be first.
    assert (order[:3], sorted(order[3:5]), order[5:]) == (
        ["image", "pull", "create"],
        ["inspect", "start"],
        ["rm"],
    )
    (create,) = [call for call in engine.calls if call[0] == "create"]
    assert create[1:4] == ["--name", name, "--pull=never"]
    assert create[-4:] == ["--", "sha256:registry.test/some:v1", "exit", "7"]
    assert {
        "--init",
        "--network=host",
        "--ipc=host",
        "--log-driver=none",
        "--no-healthcheck",
    } <= set(create)
    assert "s3cret-path" not in " ".join(create)
    assert not [
        word
        for word in create
        if word.startswith(("--userns", "--ulimit", "--pidfile", "--init-path"))
    ]
    assert engine.calls[-1] == ["rm", "--force", "--volumes", name]


def test_a_pull_s_progress_and_its_failure(controller: FakeController, host: Host) -> None:
    gone = controller.launch("exit", "0", image="registry.test/gone:v1", runtime="docker")
    facts = controller.wait_end(gone, SECONDS)
    assert "manifest for registry.test/gone:v1 not found: manifest unknown" in (
        facts.pull_error or ""
    )
    slow = controller.launch(
        "exit", "0", job="slow", image="registry.test/slow:v1", runtime="docker", pull_seconds=4.0
    )
    controller.wait(lambda: b"layer 0 of 2 done" in controller.log_of(slow, "stderr"), SECONDS)
    assert "timed out after 4 s" in (controller.wait_end(slow, SECONDS).pull_error or "")


def test_term_and_kill_reach_what_the_engine_started(
    controller: FakeController, host: Host
) -> None:
    polite = controller.launch("polite", job="polite", image="a", runtime="docker")
    deaf = controller.launch("deaf", job="deaf", image="a", runtime="docker")
    controller.wait(
        lambda: controller.log_of(polite) == controller.log_of(deaf) == b"up\n", SECONDS
    )
    pid = controller.wait_running(deaf)
    controller.preempt(polite, grace_seconds=60.0)
    facts = controller.wait_end(polite, SECONDS)
    assert (facts.exit_code, facts.stopped) == (5, True)
    controller.preempt(deaf, grace_seconds=0.5)
    facts = controller.wait_end(deaf, SECONDS)
    assert facts.stopped
    assert not is_alive(pid)


def test_a_client_that_is_lost_does_not_end_its_container(
    controller: FakeController, host: Host, engine: Engine
) -> None:
    key = controller.launch("count", "60", "3", image="a", runtime="docker")
    pid = controller.wait_running(key)
    kill_clients(engine.folder, "start")
    assert is_alive(pid)
    assert controller.wait_end(key, SECONDS).exit_code == 3
    controller.wait_logs(key)
    assert b"client is gone and the container is not" in controller.log_of(key, "stderr")


def kill_clients(folder: Path, verb: str) -> None:
    """kill -9 of the stand-in's clients at this verb, found by the folder in their environment."""
    found = 0
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
            if verb.encode() in words and str(folder).encode() in (path / "environ").read_bytes():
                os.kill(int(path.name), signal.SIGKILL)
                found += 1
        except OSError:
            continue
    assert found == 1


def test_an_engine_that_does_not_answer_is_named(
    controller: FakeController, host: Host, engine: Engine
) -> None:
    (engine.folder / "down").touch()
    facts = controller.wait_end(
        controller.launch("exit", "0", image="a", runtime="docker"), SECONDS
    )
    assert "Cannot connect to the Docker daemon" in (facts.lost or "")
    assert (facts.pull_error, facts.runtime_error) == (None, None)
    assert classify(facts).rule == "host-start", "the job is not to blame"
    (engine.folder / "down").unlink()


def test_a_host_whose_engine_is_away_takes_everything_but_images(
    controller: FakeController, host: Host, engine: Engine
) -> None:
    """DESK-1: nothing of the old incarnation runs any more, so nothing but images waits."""
    key = controller.launch("deaf", image="a", runtime="docker")
    pid = controller.wait_running(key)
    (engine.folder / "down").touch()
    kill_guardian(host)
    wait_until(lambda: not is_alive(pid))
    controller.known.clear()
    host.start()
    controller.wait(lambda: len(controller.registrations) == 2, SECONDS)
    again = controller.registrations[1]
    assert [(f.part, "docker" in f.runtimes) for f in again.faults] == [("containers", True)]
    assert (again.held, again.faults[0].devices) == ([], ())
    assert controller.wait_end(controller.launch("true", job="plain"), SECONDS).succeeded
    assert len(engine.containers) == 1
    (engine.folder / "down").unlink()
    controller.wait(lambda: controller.syncs[-1].faults == [], SECONDS)
    assert engine.containers == []


def test_an_engine_that_stops_is_told_and_so_is_its_return(
    controller: FakeController, host: Host, engine: Engine
) -> None:
    """ASIDE-1: the job that finds the engine away tells the host, before its own end is told."""
    (engine.folder / "down").touch()
    key = controller.launch("exit", "0", image="a", runtime="docker")
    controller.wait_end(key, SECONDS)
    told = next(s for s in controller.syncs if any(t.key == key and t.facts for t in s.tasks))
    assert [f.part for f in told.faults] == ["containers"]
    (engine.folder / "down").unlink()
    controller.wait(lambda: controller.syncs[-1].faults == [], SECONDS)
    key = controller.launch("exit", "0", job="after", image="a", runtime="docker")
    assert controller.wait_end(key, SECONDS).succeeded


def test_an_engine_that_never_answered_holds_no_host_up(
    controller: FakeController, host: Host, engine: Engine
) -> None:
    """DESK-1. Nothing can have been made there, so nothing is looked for at the next start."""
    (engine.folder / "down").touch()
    key = controller.launch("exit", "0", image="a", runtime="docker")
    controller.wait_end(key, SECONDS)
    kill_guardian(host)
    controller.known.clear()
    host.start()
    controller.wait(lambda: len(controller.registrations) == 2, SECONDS)
    (engine.folder / "down").unlink()


def test_only_podman_is_told_to_leave_signals_alone() -> None:
    """`docker start` refuses the option: a real engine's client said "unknown flag"."""
    podman, docker = (
        Runtime(kind="podman", program="podman"),
        Runtime(kind="docker", program="docker"),
    )
    start = ["start", "--attach", "--sig-proxy=false", "c"]
    assert podman.start("c") == ["podman", "--log-level=error", *start]
    assert docker.start("c") == ["docker", "start", "--attach", "c"]


# Starts an engine, says its pid, and never ends.
STARTS_ENGINE = """
import pathlib, sys, time
from tests.system.containers.engines import Docker
docker = Docker(pathlib.Path(sys.argv[1]))
docker.start()
print(docker.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_an_engine_of_the_tests_ends_with_them(tmp_path: Path, number: signal.Signals) -> None:
    for name, text in (("dockerd", "exec sleep 600"), ("docker", "exit 0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS_ENGINE, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)},
    )
    with starter:
        assert starter.stdout is not None
        engine = int(starter.stdout.readline())
        wait_until(lambda: read_words(engine)[:1] == [b"sleep"], what="the engine to begin")
        starter.send_signal(number)
        assert wait_exit(starter) == -number
    wait_until(lambda: not is_alive(engine), what="the engine to end")
