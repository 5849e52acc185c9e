"""Tasks in real containers, under a real guardian and agent: what goes in, what comes out, how they
end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.agent.watch.forensics import find_py_spy
from holdfast.core.settings.watch import WatchSettings
from holdfast.process.table import read_entry
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController
from tests.system.containers.conftest import mark_of
from tests.system.containers.engines import Engine
from tests.waits import wait_until

MakeHost = Callable[..., Host]
pytestmark = pytest.mark.heavy
SECONDS = 40.0


def find_parent(pid: int) -> int:
    entry = read_entry(pid)
    return entry.ppid if entry is not None else 0


def test_success_exit_codes_and_signals_come_out(
    controller: FakeController, host: Host, image: str
) -> None:
    with controller.changed:
        whole = controller.launch("exit", "0", job="whole", image=image)
        seven = controller.launch("exit", "7", job="seven", image=image)
        abort = controller.launch("signal", "6", job="abort", image=image)
    assert controller.wait_end(whole, SECONDS).succeeded
    facts = controller.wait_end(seven, SECONDS)
    assert (facts.exit_code, facts.signal, facts.stopped, facts.runtime_error) == (
        7,
        None,
        False,
        None,
    )
    facts = controller.wait_end(abort, SECONDS)
    assert (facts.exit_code, facts.signal, facts.stopped) == (128 + 6, None, False)
    controller.wait_logs(seven)
    assert controller.log_of(seven) == b"leaving\n"
    assert controller.log_of(seven, "stderr") == b""


def test_what_reaches_the_inside(
    controller: FakeController,
    make_host: MakeHost,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """argv, variables of every awkward kind, secrets, the working folder, the job's folder,
    volumes. BOX-4, BOX-5."""
    monkeypatch.setenv("ONLY_OF_THE_HOST", "yes")
    host = make_host(gpus=2).start()
    project, data = tmp_path / "a, project", tmp_path / "data"
    project.mkdir()
    data.mkdir()
    key = controller.launch(
        "show",
        "two words",
        "--flag=$HOME",
        "",
        image=image,
        cwd=str(project),
        env={
            "MINE": " spaced ",
            "LINES": "first\nsecond",
            "PATH": "/mine",
            "EMPTY": "",
            "EQUAL": "a=b#c",
        },
        secrets={"KEY": "s3cret-value\nits second line"},
        volumes=[f"{data}:/data:ro"],
    )
    facts = controller.wait_end(key, SECONDS)
    assert facts.exit_code == 0, facts
    controller.wait_logs(key)
    text = controller.log_of(key).decode()
    assert f"cwd {project}\n" in text
    assert f"uid {os.getuid()}\n" in text
    assert "arg two words\narg --flag=$HOME\narg \n" in text
    for word in ("MINE= spaced ", "LINES=first\nsecond", "PATH=/mine", "EMPTY=", "EQUAL=a=b#c"):
        assert f"env {word}\n" in text, word
    assert "s3cret" not in text
    assert f"env KEY={'*' * len('s3cret-value')}" in text
    assert f"env HOLDFAST_TASK={key}\n" in text
    assert f"env HOLDFAST_WORK={host.folder}/state/work/job\n" in text
    assert "env RANK=0\n" in text
    assert "env CUDA_VISIBLE_DEVICES=\n" in text
    assert "ONLY_OF_THE_HOST" not in text
    for path, volumes, code in (
        (f"{project}/new", [], 0),
        ("/data/new", [f"{data}:/data:ro"], 6),
        ("/data/new", [f"{data}:/data"], 0),
    ):
        key = controller.launch(
            "write",
            path,
            "text",
            job=f"w{len(controller.ends)}",
            image=image,
            cwd=str(project),
            volumes=volumes,
        )
        assert controller.wait_end(key, SECONDS).exit_code == code
    assert (project / "new").read_text() == (data / "new").read_text() == "text"


def test_no_value_of_a_variable_is_on_a_command_line_or_left_in_a_file(
    controller: FakeController,
    make_host: MakeHost,
    engine: Engine,
    image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """BOX-4. A client that writes down what it is called with stands before the real one."""
    tools, calls = tmp_path / "tools", tmp_path / "calls"
    tools.mkdir()
    client = tools / engine.kind
    client.write_text(f'#!/bin/sh\necho "$*" >> {calls}\nexec {shutil.which(engine.kind)} "$@"\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    host = make_host().start()
    secrets = {"KEY": "s3cret-key", "PATH": "s3cret-path"}
    key = controller.launch("plain", image=image, env={"MINE": "v4lue-mine"}, secrets=secrets)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    assert " create --name " in calls.read_text()
    assert "--env KEY " in calls.read_text()
    lines = [calls.read_bytes()]
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes())
        except OSError:
            continue
    for line in lines:
        if b"pytest" not in line:
            assert b"s3cret-" not in line, line
            assert b"v4lue-mine" not in line, line
    state = Path(host.config.state_dir)
    holding = [p for p in state.rglob("*") if p.is_file() and b"s3cret-" in p.read_bytes()]
    assert [p.name for p in holding] == ["order.json"]  # kept for the next agent, 0600 (KEEP-1)
    controller.preempt(key, hard=True)
    assert controller.wait_end(key, SECONDS).stopped


def test_beats_arrive_and_the_process_is_the_container_s(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    key = controller.launch("wedge", image=image)
    controller.wait(lambda: controller.beats.get(key) and controller.beats[key].step == 3, SECONDS)
    pid = controller.wait_running(key)
    if (
        engine.kind == "podman"
    ):  # docker's containers are below its engine, and found by the host's mark
        above = [pid]
        while above[-1] not in (host.guardian_pid, 0):
            above.append(find_parent(above[-1]))
        # Between the guardian and the runner is the task's keeper.
        assert b"containers.runner" in Path(f"/proc/{above[-3]}/cmdline").read_bytes(), (
            "BOX-1: the runner is above it"
        )
    ours, inside = (
        {kind: os.readlink(f"/proc/{whose}/ns/{kind}") for kind in ("net", "ipc", "pid")}
        for whose in ("self", pid)
    )
    assert inside["net"] == ours["net"], "BOX-6"
    assert inside["ipc"] == ours["ipc"] or os.getuid() != 0
    assert inside["pid"] != ours["pid"]
    (name,) = engine.containers(mark_of(host))
    assert engine.run("inspect", "--format", "{{.State.Pid}}", name).strip() == str(pid)
    assert name.endswith(".0.1")
    assert engine.run(
        "inspect", "--format", '{{index .Config.Labels "holdfast.task"}}', name
    ).strip() == str(key)
    controller.preempt(key, hard=True)
    controller.wait_end(key, SECONDS)


def test_term_reaches_the_inside_once_and_its_answer_comes_out(
    controller: FakeController, host: Host, image: str
) -> None:
    key = controller.launch("polite", image=image)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    controller.preempt(key, grace_seconds=60.0)
    facts = controller.wait_end(key, SECONDS)
    assert (facts.exit_code, facts.stopped, facts.trip) == (5, True, None)
    assert facts.max_memory_bytes < 16 << 20, "the container's, not its runner's or its user's"
    assert facts.max_memory_bytes > 0 or os.getuid() != 0
    controller.wait_logs(key)
    assert controller.log_of(key) == b"up\ntook TERM\n"


def test_term_ends_a_program_that_handles_nothing(
    controller: FakeController, host: Host, image: str
) -> None:
    """As the first process of its namespace it would be deaf to TERM; a small init stands before
    it."""
    key = controller.launch("plain", image=image)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    controller.preempt(key, grace_seconds=60.0)
    facts = controller.wait_end(key, SECONDS)
    assert (facts.exit_code, facts.stopped) == (128 + 15, True)


def test_term_reaches_the_program_below_a_shell_and_leaves_it_its_grace(
    controller: FakeController, host: Host, image: str
) -> None:
    """TELL-1. The first process would die of it, and everything else inside with it, before
    anything is saved."""
    key = controller.launch("script", image=image)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    controller.preempt(key, grace_seconds=20.0)
    facts = controller.wait_end(key, SECONDS)
    assert (facts.exit_code, facts.stopped) == (128 + 15, True)
    controller.wait_logs(key)
    assert controller.log_of(key) == b"up\nsaved\n"


@pytest.mark.parametrize("word", ["deaf", "family"])
def test_what_ignores_term_is_killed_with_all_it_started(
    controller: FakeController, host: Host, image: str, engine: Engine, word: str
) -> None:
    key = controller.launch(word, image=image)
    controller.wait(lambda: controller.log_of(key) == b"up\n", SECONDS)
    controller.preempt(key, grace_seconds=1.0 if word == "deaf" else 60.0)
    facts = controller.wait_end(key, SECONDS)
    assert facts.stopped
    assert (facts.exit_code, facts.signal) == ((None, 9) if word == "deaf" else (128 + 15, None))
    assert engine.containers(mark_of(host)) == []


def test_a_container_that_eats_too_much_memory(
    controller: FakeController, host: Host, image: str, limits_memory: None
) -> None:
    key = controller.launch("eat", image=image, memory_bytes=48 << 20)
    facts = controller.wait_end(key, SECONDS)
    assert facts.oom
    assert facts.exit_code == 137
    assert facts.runtime_error is None
    assert facts.max_memory_bytes <= facts.memory_limit_bytes == 48 << 20


def test_a_wedged_container_trips_the_stall_watchdog_with_forensics(
    controller: FakeController, host: Host, image: str, engine: Engine
) -> None:
    watch = WatchSettings(
        stall_timeout_seconds=1.5, stall_sample_interval_seconds=0.2, forensics_seconds=6.0
    )
    key = controller.launch("wedge", image=image, watch=watch)
    facts = controller.wait_end(key, SECONDS)
    assert facts.trip is not None
    assert (facts.trip.exit_code, facts.stopped) == (76, False)
    controller.wait(lambda: controller.forensics)
    (found,) = controller.forensics
    assert "/inside wedge" in found.sections["processes"]
    assert engine.containers(mark_of(host)) == []


WEDGED_PYTHON = """
import json, os, socket, time
def wedge_here():
    time.sleep(1000)
socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(
    json.dumps({"task": os.environ["HOLDFAST_TASK"], "step": 1}).encode(), os.environ["HOLDFAST_BEAT_SOCKET"])
wedge_here()
"""


def test_python_stacks_are_read_across_the_wall(
    controller: FakeController, host: Host, image: str
) -> None:
    """The machine's own Python, lent to the container: no image with one can be had without a
    network."""
    python = os.path.realpath("/usr/bin/python3")
    if not os.path.exists(python) or find_py_spy() is None:
        pytest.skip("no system Python, or no py-spy")
    watch = WatchSettings(
        stall_timeout_seconds=1.5, stall_sample_interval_seconds=0.2, forensics_seconds=8.0
    )
    lent = [f"{path}:{path}:ro" for path in ("/usr", "/lib", "/lib64") if os.path.isdir(path)]
    key = controller.launch(
        image=image,
        shell=f"exec {python} -c '{WEDGED_PYTHON}'",
        volumes=[*lent, "/bin:/bin:ro"],
        watch=watch,
    )
    facts = controller.wait_end(key, SECONDS)
    assert facts.trip is not None, facts
    assert facts.trip.exit_code == 76
    controller.wait(lambda: controller.forensics)
    assert "wedge_here" in controller.forensics[0].sections["python stacks"]


def test_what_cannot_be_started_says_so(
    controller: FakeController, make_host: MakeHost, image: str, tmp_path: Path
) -> None:
    host = make_host().start()
    with controller.changed:
        shell = controller.launch(job="shell", image=image, shell="echo no shell in there")
        volume = controller.launch(
            "exit", "0", job="volume", image=image, volumes=[f"{tmp_path}/none:/data"]
        )
    facts = controller.wait_end(shell, SECONDS)
    assert facts.exit_code == 127
    assert "in its container" in (facts.start_error or ""), facts
    facts = controller.wait_end(volume, SECONDS)
    assert facts.exit_code is None
    assert f"{tmp_path}/none" in (facts.runtime_error or ""), facts
    assert not (tmp_path / "none").exists(), "made on the host, and owned by root"
    assert not host.said("Traceback")


def test_a_host_without_a_runtime_names_what_to_install(
    controller: FakeController,
    make_host: MakeHost,
    engine: Engine,
    image: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    make_host().start()
    facts = controller.wait_end(controller.launch("exit", "0", image=image, runtime=None), SECONDS)
    assert "install podman (or docker)" in (facts.start_error or "")
    asked = controller.launch("exit", "0", job="asked", image=image)
    assert f"{engine.kind} is not installed" in (
        controller.wait_end(asked, SECONDS).start_error or ""
    )


def test_all_output_arrives_and_nothing_stays_on_disk(
    controller: FakeController, host: Host, image: str
) -> None:
    key = controller.launch("count", "60", "3", image=image)
    assert controller.wait_end(key, SECONDS).exit_code == 3
    controller.wait_logs(key)
    assert controller.log_of(key) == b"".join(b"line %d\n" % number for number in range(60))
    tasks = Path(host.config.state_dir, "tasks")
    wait_until(lambda: not list(tasks.glob("[!.]*")))
