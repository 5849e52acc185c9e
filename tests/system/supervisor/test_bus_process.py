"""The bus's own process: what holds up the script holds up no heartbeat, and it goes with its
script."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import Unavailable
from holdfast.supervisor import Context, ContextClosed, HostLost
from tests.system.supervisor.rig import (
    ECHO,
    PATIENCE,
    Managers,
    attach,
    find_descendants,
    local_context,
    python,
    wait_gone,
)
from tests.waits import Patience, is_alive, wait_until

HEARTBEAT = 0.25  # so a silence of 1 s is a loss


def hold_interpreter(seconds: int) -> None:
    """Sleep in a C call that lets no other thread of this process run."""
    ctypes.PyDLL("libc.so.6").sleep(seconds)


@pytest.mark.slow
def test_a_script_that_holds_its_interpreter_loses_no_host(managers: Managers) -> None:
    with local_context(heartbeat=HEARTBEAT) as ctx:
        hosts, _ = attach(ctx, managers, 2)
        group = ctx.create_process_group(hosts, python(ECHO))
        assert group.gather().result(PATIENCE) == ["ready"] * 2
        hold_interpreter(5)
        group.broadcast("still there")
        assert group.gather().result(PATIENCE) == ["still there"] * 2
        assert [host.lost_reason for host in hosts] == [None, None]


SCRIPT = """
import sys
from holdfast.supervisor import Context
ctx = Context(bind="127.0.0.1", log_interval=None, heartbeat=float(sys.argv[1]))
ctx.start_local_managers(1)
(host,) = ctx.request_hosts(1)
host.hostname().result(40)
(process,) = ctx.create_process_group([host], ["sleep", "6000"])
print(ctx._run.bus.pid, process.pid().result(40), flush=True)
sys.stdin.read()
"""


def start_script(heartbeat: float) -> tuple[subprocess.Popen[str], int, int]:
    """A script with a host; the pids of its bus process and of a process on the host."""
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(heartbeat)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert script.stdout is not None
    bus, rank = map(int, script.stdout.readline().split())
    return script, bus, rank


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_goes_with_its_script(number: int) -> None:
    """BUS-3."""
    script, bus, rank = start_script(30.0)
    below = find_descendants(script.pid)
    assert bus in below
    script.send_signal(number)
    script.wait(PATIENCE)
    wait_gone([bus], "the bus process")
    for pid in below:
        if is_alive(pid):
            os.kill(pid, signal.SIGKILL)
    script.communicate()  # its host manager, too, held the pipe
    wait_gone([rank, *below], "what the script had started")


@pytest.mark.slow
def test_hosts_of_a_frozen_script_end(managers: Managers) -> None:
    """BUS-3: the process that answers for the script does not answer for one that is stopped."""
    script, bus, rank = start_script(HEARTBEAT)
    script.send_signal(signal.SIGSTOP)
    try:
        wait_gone([rank], "the process on the host of a frozen script")
        assert is_alive(bus)
    finally:
        script.kill()
        script.communicate()
    wait_gone([bus], "the bus process")


@pytest.mark.slow
def test_signals_that_are_for_the_script_do_not_end_it(ctx: Context, managers: Managers) -> None:
    hosts, _ = attach(ctx, managers, 1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(ctx._run.bus.pid, number)
    (process,) = ctx.create_process_group(hosts, ["true"])
    assert process.returncode().result(PATIENCE) == 0


@pytest.mark.slow
def test_its_death_is_said_to_every_call(managers: Managers) -> None:
    with local_context() as ctx:
        hosts, _ = attach(ctx, managers, 1)
        (process,) = ctx.create_process_group(hosts, ["sleep", "6000"])
        process.pid().result(PATIENCE)
        os.kill(ctx._run.bus.pid, signal.SIGKILL)
        with pytest.raises(HostLost, match="bus process of this run died"):
            process.returncode().result(PATIENCE)
        with pytest.raises(ContextClosed, match="bus process of this run died"):
            ctx.request_hosts(1)


@pytest.mark.slow
def test_a_script_that_does_not_read_is_flooded_and_loses_nothing(managers: Managers) -> None:
    """BUS-4: what the script does not read waits with the hosts, and comes in order."""
    flood = """
from holdfast.supervisor import get_message_queue
queue = get_message_queue()
for number in range(300):
    queue.send((number, b"x" * 1_000_000))
assert queue.recv() == "stop"
"""
    with local_context() as ctx:
        hosts, _ = attach(ctx, managers, 1)
        (process,) = ctx.create_process_group(hosts, python(flood))
        assert process.recv().result(PATIENCE)[0] == 0
        bus = ctx._run.bus.pid
        hold_interpreter(4)
        assert read_rss_bytes(bus) < 250_000_000
        for number in range(1, 300):
            assert process.recv().result(PATIENCE)[0] == number
        process.send("stop")
        assert process.returncode().result(PATIENCE) == 0


def read_rss_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_a_port_in_use_is_said_and_one_that_becomes_free_is_taken() -> None:
    with local_context() as first:
        port = first.port
        patience = Patience(PATIENCE)
        with pytest.raises(Unavailable, match=str(port)):
            local_context(port=port)
        assert not patience.over
        wait_until(lambda: first.status().hosts_attached == 0)
    with local_context(port=port) as second:
        assert second.port == port
