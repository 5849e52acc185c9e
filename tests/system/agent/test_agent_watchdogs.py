"""Watchdogs end to end on one host: a trip, its forensics, the kill, and the facts, with and
without a controller."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.core.settings.watch import WatchSettings
from holdfast.process.syscalls import read_boottime
from holdfast.wire.api import Problem
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController, serve
from tests.waits import crowding, is_alive, wait_until

MakeHost = Callable[..., Host]
pytestmark = pytest.mark.slow

BEAT = """
import ctypes, json, os, socket, sys, time
def beat(**fields):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    s.sendto(json.dumps({"task": os.environ["HOLDFAST_TASK"], **fields}).encode(), os.environ["HOLDFAST_BEAT_SOCKET"])
"""
QUICK = WatchSettings(
    stall_timeout_seconds=0.6,
    stall_sample_interval_seconds=0.1,
    stall_samples=2,
    forensics_seconds=5.0,
)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", BEAT + code]


def test_hang_that_holds_the_gil_is_examined_and_killed(
    controller: FakeController, host: Host
) -> None:
    code = """
def wedge_here():
    print("about to wedge", os.environ["KEY"], flush=True)
    ctypes.PyDLL(None).sleep(300)
beat(step=41)
wedge_here()
"""
    watch = msgspec.structs.replace(QUICK, forensics_seconds=60.0)
    key = controller.launch(*python(code), watch=watch, secrets={"KEY": "hunter2-secret"})
    facts = controller.wait_end(key, 40)
    assert facts.trip is not None
    assert (facts.trip.exit_code, facts.signal, facts.stopped) == (76, 9, False)
    assert controller.beats[key].step == 41
    controller.wait(lambda: controller.forensics)
    found = controller.forensics[0]
    assert "wedge_here" in found.sections["python stacks"]
    assert "State:" in found.sections["processes"]
    assert '"step":41' in found.sections["beats"]
    assert "about to wedge" in found.sections["log tail"]
    everything = msgspec.json.encode(found) + msgspec.json.encode(facts) + controller.log_of(key)
    assert b"hunter2-secret" not in everything
    assert b"about to wedge **************" in controller.log_of(key)
    assert found.seconds < watch.forensics_seconds  # all of it was there in time


def test_busy_task_that_stops_beating_is_left_alone(controller: FakeController, host: Host) -> None:
    code = "beat(step=1)\nend = time.monotonic() + 2.5\nwhile time.monotonic() < end: pass\n"
    key = controller.launch(*python(code), watch=QUICK)
    facts = controller.wait_end(key, 20)
    assert (facts.exit_code, facts.trip) == (0, None)
    assert host.said("not stalled")


def test_loading_without_a_beat_is_left_alone(controller: FakeController, host: Host) -> None:
    key = controller.launch(*python("time.sleep(2)"), watch=QUICK)
    assert controller.wait_end(key, 20).exit_code == 0


def test_time_limit_with_the_controller_gone(
    controller: FakeController, make_host: MakeHost
) -> None:
    """The kill needs no controller, and the report waits until there is one."""
    with serve(controller) as address:
        make_host(address).start()
        watch = WatchSettings(time_limit_seconds=2.0 * crowding(), forensics_seconds=1.0)
        key = controller.launch("/bin/sleep", "300", watch=watch)
        pid = controller.wait_running(key)
    port = int(address.rsplit(":", 1)[1])
    wait_until(lambda: not is_alive(pid))
    with serve(controller, port):
        facts = controller.wait_end(key, 20)
    assert facts.trip is not None
    assert facts.trip.exit_code == 75
    assert len(controller.registrations) == 1


def test_kill_comes_though_forensics_are_slow(controller: FakeController, host: Host) -> None:
    """AGT-2: more stacks to dump than the time allows."""
    watch = msgspec.structs.replace(QUICK, forensics_seconds=1.0, time_limit_seconds=0.5)
    child = "[sys.executable, '-c', 'import time; time.sleep(99)']"
    code = f"import subprocess\nps = [subprocess.Popen({child}) for _ in range(12)]\ntime.sleep(99)"
    # Many idle Python processes.
    key = controller.launch(*python(code), watch=watch)
    facts = controller.wait_end(key, 20)
    assert facts.trip is not None
    assert facts.trip.exit_code == 75


def test_agent_killed_between_verdict_and_kill(controller: FakeController, host: Host) -> None:
    code = "\nimport threading\ntime.sleep(300)"
    watch = WatchSettings(time_limit_seconds=0.5, forensics_seconds=30.0)
    key = controller.launch(*python(code), watch=watch)
    agent = host.agent_pid()
    wait_until(lambda: host.said("watchdog tripped"))
    os.kill(agent, signal.SIGKILL)
    facts = controller.wait_end(key, 10)
    assert facts.trip is not None
    assert facts.trip.exit_code == 75


def test_watch_goes_on_after_the_agent_died(controller: FakeController, host: Host) -> None:
    """Armed by a beat that only the dead agent saw."""
    watch = msgspec.structs.replace(QUICK, stall_timeout_seconds=1.5)
    key = controller.launch(*python("beat(step=7)\ntime.sleep(300)"), watch=watch)
    controller.wait(lambda: key in controller.beats)
    os.kill(host.agent_pid(), signal.SIGKILL)
    facts = controller.wait_end(key, 20)
    assert facts.trip is not None
    assert facts.trip.exit_code == 76


def test_lease_deadline_with_the_controller_gone(
    controller: FakeController, make_host: MakeHost
) -> None:
    with serve(controller) as address:
        host = make_host(address).start()
        # It says itself until when it lived, because the test may look late.
        code = "while True:\n    print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True); time.sleep(0.02)"
        controller.ttl_seconds = 6.0
        key = controller.launch(*python(code), ttl_seconds=controller.ttl_seconds)
        pid = controller.wait_running(key)
        renewed_past = time.monotonic() + controller.ttl_seconds + 1.0
        wait_until(lambda: time.monotonic() > renewed_past)
        assert is_alive(pid)  # renewed all the time
        assert not host.said("lost the controller")
    cut_at = read_boottime()
    port = int(address.rsplit(":", 1)[1])
    wait_until(lambda: not is_alive(pid))
    with serve(controller, port):
        facts = controller.wait_end(key, 20)
        controller.wait_logs(key)
    assert facts.trip is not None
    assert facts.trip.exit_code == 77
    assert host.said("lost the controller")
    lived_until = float(controller.log_of(key).splitlines()[-1])
    assert 0.5 < lived_until - cut_at < controller.ttl_seconds


def test_scripted_probe_is_loud_and_decides(
    controller: FakeController, make_host: MakeHost, tmp_path: Path
) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"tree": {"cpu_seconds": 1.0, "io_bytes": 0, "rss_bytes": 1000}}))
    host = make_host(probe=f"scripted:tests.simulated.probe:{script}").start()
    key = controller.launch(*python("beat(step=1)\nwhile True: pass"), watch=QUICK)
    facts = controller.wait_end(key, 20)
    assert facts.trip is not None
    assert facts.trip.exit_code == 76
    assert host.said("SCRIPTED PROBE")
    assert controller.registrations[0].facts.probe == "scripted"


def test_the_kernels_word_ends_a_task_that_beats(
    controller: FakeController, make_host: MakeHost, tmp_path: Path
) -> None:
    """FAULT-4: its device fell off the bus; it need not fall silent first."""
    script = tmp_path / "script.jsonl"
    gone = {"xids": [79], "lines": ["NVRM: Xid (PCI:0000:3b:00): 79, fallen off the bus"]}
    script.write_text(json.dumps({"kernel": gone, "faults": {"xids": [79]}}))
    make_host(probe=f"scripted:tests.simulated.probe:{script}").start()
    code = "while True: beat(step=1); time.sleep(0.1)"
    key = controller.launch(*python(code), watch=QUICK, gpus=[0])
    facts = controller.wait_end(key, 30)
    assert facts.trip is not None
    assert facts.trip.exit_code == 78
    assert "79" in str(facts.trip.evidence["kernel_log"])
    assert facts.xids == (79,)


def test_bad_datagrams_hurt_nobody(controller: FakeController, host: Host) -> None:
    code = """
s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for junk in (b"", b"x", b"{}", b"\\xff" * 3000, json.dumps({"task": "a:b:c"}).encode(), json.dumps({"task": "job:0:99"}).encode()):
    s.sendto(junk, os.environ["HOLDFAST_BEAT_SOCKET"])
beat(step=3)
time.sleep(1)
"""
    key = controller.launch(*python(code))
    controller.wait(lambda: key in controller.beats)
    assert controller.beats[key].step == 3
    assert controller.wait_end(key).exit_code == 0
    assert host.said("dropped so far")


def test_big_log_is_shipped_with_a_gap_and_stays_whole_at_its_ends(
    controller: FakeController, host: Host
) -> None:
    code = """
line = b"x" * 99 + b"\\n"
out = sys.stdout.buffer
out.write(b"FIRST\\n")
for _ in range(2000): out.write(line * 1000)
out.write(b"LAST\\n")
"""
    watch = WatchSettings(log_keep_mb=1.0, log_disk_mb=32.0)
    key = controller.launch(*python(code), watch=watch)
    assert controller.wait_end(key, 60).exit_code == 0
    controller.wait_logs(key, 60)
    chunks = controller.logs[(key, "stdout")]
    last = max(chunks)
    assert chunks[0].startswith(b"FIRST\n")
    assert chunks[last].endswith(b"LAST\n")
    assert last + len(chunks[last]) == 2000 * 1000 * 100 + 11
    assert b"\0" not in b"".join(chunks.values())


def test_binary_log_arrives_byte_for_byte(controller: FakeController, host: Host) -> None:
    key = controller.launch(*python("sys.stdout.buffer.write(bytes(range(256)) * 1000)"))
    controller.wait_logs(key)
    assert controller.log_of(key) == bytes(range(256)) * 1000


def test_logs_wait_for_a_controller_that_is_away(controller: FakeController, host: Host) -> None:
    away = [True]
    problem = (503, Problem(status=503, code="unavailable", detail="away"))
    controller.fail = lambda path: problem if away[0] and path.endswith("/logs") else None
    key = controller.launch("/bin/sh", "-c", "echo kept")
    controller.wait_end(key)
    wait_until(lambda: host.said("logs wait on disk"))
    away[0] = False
    controller.wait_logs(key)
    assert controller.log_of(key) == b"kept\n"


def test_black_hole_is_survived(controller: FakeController, host: Host) -> None:
    """Answers that take longer than anybody waits; the task ends meanwhile and is reported when the
    hole closes."""
    key = controller.launch("/bin/sleep", "1")
    controller.wait_running(key)
    controller.delay_seconds = 4.0
    wait_until(lambda: not is_alive(controller.pids[key]))
    controller.delay_seconds = 0.0
    assert controller.wait_end(key, 30).exit_code == 0
