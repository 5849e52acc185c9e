"""Agents and guardians that die, freeze or are replaced under running tasks."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process import table
from holdfast.wire.guardian import Ack, TaskEnded
from tests.system.agent import guardian_rig
from tests.system.agent.guardian_rig import Rig, find_marked
from tests.waits import is_alive, stretch, wait_until

FAMILY = """
import os, subprocess, sys, time
subprocess.Popen(['sleep', '600'])
subprocess.Popen(['sh', '-c', "trap '' TERM HUP; while :; do sleep 0.05; done"], start_new_session=True)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep(600)
    os._exit(0)
print('ready', flush=True)
time.sleep(600)
"""


@pytest.fixture(params=["groups", "no groups"])
def rig(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Rig]:
    made = Rig(tmp_path, use_groups=request.param == "groups")
    made.start()
    made.meet()
    yield made
    made.close()


def find_tasks(host: str) -> list[int]:
    """Living marked processes that are no agents."""
    return [
        pid for pid in find_marked(host) if not (table.read_marks(pid)[0] or "").startswith("agent")
    ]


# ---- the agent


@pytest.mark.slow
def test_a_killed_agent_costs_its_tasks_nothing(rig: Rig) -> None:
    """GUARD-4: what ended meanwhile, exit code and output, waits for the next agent."""
    slow = [
        "sh",
        "-c",
        "i=0; while [ $i -lt 200 ]; do echo line $i; sleep 0.005; i=$((i+1)); done; exit 7",
    ]
    key, pid = rig.start_task(slow)
    staying, staying_pid = rig.start_task(["sleep", "600"], job="staying")
    first = rig.agent_pid
    os.kill(first, signal.SIGKILL)
    snapshot = rig.meet()
    assert rig.agent_pid != first
    assert {task.key: task.pid for task in snapshot.tasks} == {key: pid, staying: staying_pid}
    ended = next((task.ended for task in snapshot.tasks if task.key == key), None) or rig.expect(
        TaskEnded, key
    )
    assert ended.exit_code == 7
    assert rig.read("job.out") == "".join(f"line {number}\n" for number in range(200))
    os.kill(rig.agent_pid, signal.SIGKILL)
    again = {task.key: task.ended for task in rig.meet().tasks}
    assert again == {key: ended, staying: None}
    rig.say(Ack(keys=[key]))
    os.kill(rig.agent_pid, signal.SIGKILL)
    assert [task.key for task in rig.meet().tasks if task.ended] in (
        [],
        [key],
    )  # the word may have died with it
    assert is_alive(staying_pid)


@pytest.mark.slow
def test_a_frozen_agent_is_replaced(tmp_path: Path) -> None:
    limit = stretch(1.0)  # one that turns says so every 0.1 s of a machine that does nothing else
    rig = Rig(tmp_path, frozen_seconds=limit)
    try:
        rig.start()
        rig.meet()
        _, pid = rig.start_task(["sleep", "600"])
        frozen = rig.agent_pid
        os.kill(frozen, signal.SIGSTOP)
        assert [task.pid for task in rig.meet().tasks] == [pid]
        assert rig.agent_pid != frozen
        assert not is_alive(frozen)
        assert "has been silent" in rig.notes()
        # One that turns is left alone for longer than that.
        deadline = time.monotonic() + 1.5 * limit
        while time.monotonic() < deadline:
            rig.hear(0.1)
        assert is_alive(rig.agent_pid)
    finally:
        rig.close()


def test_an_agent_that_starts_slowly_gets_ever_more_time(tmp_path: Path) -> None:
    rig = Rig(tmp_path, frozen_seconds=0.2, agent_argv=["sleep", "600"])
    try:
        rig.start()
        wait_until(
            lambda: rig.notes().count("has been silent") >= 5, what="five that never said a word"
        )
        silent = [float(seconds) for seconds in re.findall(r"silent for ([0-9.]+) s", rig.notes())]
        assert all(
            found >= least - 0.05
            for found, least in zip(silent, [0.2, 0.4, 0.8, 1.6, 1.6], strict=False)
        ), silent
    finally:
        rig.close()


def test_an_upgrade_replaces_the_agent_alone(rig: Rig) -> None:
    _, pid = rig.start_task(["sleep", "600"])
    old = rig.agent_pid
    rig.guardian.send_signal(signal.SIGHUP)
    assert [task.pid for task in rig.meet().tasks] == [pid]
    assert rig.agent_pid != old
    assert not is_alive(old)
    assert "the agent is killed" not in rig.notes()  # it went when told


def test_an_agent_that_keeps_dying_is_started_ever_more_slowly(tmp_path: Path) -> None:
    program = tmp_path / "dying"
    program.write_text("#!/bin/sh\necho $$ >> starts\nexit 1\n")
    program.chmod(0o755)
    rig = Rig(
        tmp_path,
        agent_argv=["sh", "-c", f"cd {tmp_path} && ./dying"],
        agent_backoff_seconds=[0.05, 0.2],
    )
    try:
        rig.start()
        wait_until(lambda: rig.notes().count("the agent ended") >= 5, what="five deaths")
        notes = [json.loads(line) for line in rig.notes().splitlines()]
        delays = [
            note["again_in_seconds"] for note in notes if note["message"] == "the agent ended"
        ]
        assert delays[:5] == [0.0, 0.05, 0.1, 0.2, 0.2]
    finally:
        rig.close()


def test_an_agent_that_cannot_be_started_is_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, agent_argv=["/no/such/agent"])
    try:
        rig.start()
        wait_until(lambda: "no such program: '/no/such/agent'" in rig.notes(), what="the reason")
    finally:
        rig.close()


def test_an_agent_that_talks_nonsense_is_replaced(tmp_path: Path) -> None:
    code = "import os, time; os.write(int(os.environ['HOLDFAST_GUARDIAN_FD']), b'\\xff' * 64); time.sleep(600)"
    rig = Rig(tmp_path, agent_argv=[sys.executable, "-c", code])
    try:
        rig.start()
        wait_until(lambda: rig.notes().count("the agent was started") >= 2, what="a second agent")
        assert "what is no message" in rig.notes()
    finally:
        rig.close()


def test_what_a_dead_agent_started_goes_with_it(tmp_path: Path) -> None:
    code = (
        "import os, subprocess, time\n"
        "p = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        f"open({str(tmp_path / 'probe')!r}, 'a').write(f'{{p.pid}}\\n')\n"
        "time.sleep(600)"
    )
    rig = Rig(tmp_path, agent_argv=[sys.executable, "-c", code])
    try:
        rig.start()
        probe = int(rig.wait_word("probe"))
        agent = table.read_entry(probe)
        assert agent is not None
        os.kill(agent.ppid, signal.SIGKILL)
        wait_until(lambda: not is_alive(probe), what="the probe to end")
    finally:
        rig.close()


# ---- the guardian


def test_a_killed_guardian_leaves_no_descendant(rig: Rig) -> None:
    """GUARD-6: first processes die by themselves, the agent sweeps the rest and goes."""
    rig.start_task([sys.executable, "-c", FAMILY])
    rig.wait_word("job.out")
    wait_until(lambda: len(find_tasks(rig.host)) >= 4, what="the whole family")
    rig.guardian.kill()
    rig.guardian.wait()
    wait_until(lambda: find_marked(rig.host) == [], what="every process of the host to end")


def test_a_frozen_agent_still_sweeps_when_its_guardian_is_killed(rig: Rig) -> None:
    rig.start_task([sys.executable, "-c", FAMILY])
    rig.wait_word("job.out")
    os.kill(rig.agent_pid, signal.SIGSTOP)
    rig.guardian.kill()
    rig.guardian.wait()
    wait_until(lambda: find_marked(rig.host) == [], what="every process of the host to end")


def test_the_next_guardian_sweeps_what_both_left(rig: Rig) -> None:
    """GUARD-5, with guardian and agent killed at once."""
    rig.start_task([sys.executable, "-c", FAMILY])
    rig.wait_word("job.out")
    wait_until(lambda: len(find_tasks(rig.host)) >= 4, what="the whole family")
    # So that neither does anything in the moment between the two kills.
    for pid in (rig.guardian.pid, rig.agent_pid):
        os.kill(pid, signal.SIGSTOP)
    os.kill(rig.agent_pid, signal.SIGKILL)
    rig.guardian.kill()
    rig.guardian.wait()
    left = find_tasks(rig.host)
    assert left, "nothing was left behind: this test tests nothing"
    rig.start()
    snapshot = rig.meet()
    assert snapshot.tasks == []
    assert not any(is_alive(pid) for pid in left)
    assert find_tasks(rig.host) == []


def test_every_guardian_is_a_new_incarnation(rig: Rig) -> None:
    first = (
        Path(f"/proc/{rig.agent_pid}/environ")
        .read_bytes()
        .split(b"HOLDFAST_INCARNATION=")[1]
        .split(b"\0")[0]
    )
    rig.guardian.kill()
    rig.guardian.wait()
    rig.start()
    assert rig.meet().incarnation != first.decode()


def test_it_goes_with_its_starter(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    try:
        config = {
            "state_dir": str(rig.state_dir),
            "host_id": rig.host,
            "agent_argv": ["sleep", "600"],
            "die_with_parent": True,
        }
        code = (
            "import json, subprocess, sys, time\n"
            "p = subprocess.Popen([sys.executable, *sys.argv[1:]]); print(p.pid, flush=True); "
            "time.sleep(600)"
        )
        starter = subprocess.Popen(
            [sys.executable, "-c", code, guardian_rig.__file__, "guardian", json.dumps(config)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert starter.stdout is not None
        guardian = int(starter.stdout.readline())
        wait_until(lambda: find_marked(rig.host), what="the agent")
        starter.kill()
        starter.wait()
        starter.stdout.close()
        wait_until(lambda: not is_alive(guardian), what="the guardian to go")
        wait_until(lambda: not find_marked(rig.host), what="the agent to go")
    finally:
        rig.close()


def test_systemd_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = f"/tmp/hf-notify-{os.urandom(6).hex()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(path)
        systemd.settimeout(stretch(20))
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        rig = Rig(tmp_path)
        try:
            rig.start()
            rig.meet()
            assert systemd.recv(100) == b"READY=1"
            assert [systemd.recv(100) for _ in range(3)] == [b"WATCHDOG=1"] * 3
            rig.run_task(["env"], env={"PATH": os.environ["PATH"]})
            assert b"NOTIFY_SOCKET" not in Path(f"/proc/{rig.agent_pid}/environ").read_bytes()
            rig.guardian.send_signal(signal.SIGTERM)
            heard = [systemd.recv(100)]
            while heard[-1] == b"WATCHDOG=1":
                heard.append(systemd.recv(100))
            assert heard[-1] == b"STOPPING=1"
        finally:
            rig.close()
            os.unlink(path)
