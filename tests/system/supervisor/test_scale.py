"""Hundreds of simulated hosts in one process, over the real wire."""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.supervisor import Context, wait
from tests.simulated.hosts import start_simulated_hosts
from tests.system.supervisor.rig import PATIENCE, local_context
from tests.waits import wait_until

_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17
_WALL = 0x40000000  # waits for threads, too


@pytest.mark.slow
def test_hundreds_of_simulated_hosts(ctx: Context) -> None:
    hosts = ctx.request_hosts(300)
    (pid,) = start_simulated_hosts(ctx, 300)
    group = ctx.create_process_group(hosts, ["echo"], processes_per_host=4, simulate=True)
    assert wait([process.pid() for process in group], timeout=PATIENCE).not_done == set()
    assert len({host.hostname().result(0) for host in hosts}) == 300
    answers = group.gather()
    group.broadcast({"step": 1})
    assert answers.result(PATIENCE) == [{"step": 1}] * 1200
    assert pid > 0
    assert group.signal(10).result(PATIENCE) == 1200
    brief = ctx.create_process_group(hosts, ["sleep", "0.1"], simulate=True)
    failing = ctx.create_process_group(hosts, ["exit", "3"], simulate=True)
    assert {process.returncode().result(PATIENCE) for process in brief} == {0}
    assert {process.returncode().result(PATIENCE) for process in failing} == {3}
    status = ctx.status()
    assert (status.hosts_attached, status.hosts_lost, status.processes_running) == (300, 0, 1200)
    ctx.return_hosts(hosts[:100])
    assert {future.result(PATIENCE) for future in ctx.end(group[400:], 0.0)} == {-15}


def find_zmq_threads(pid: int) -> set[int]:
    """ZeroMQ's threads that move bytes, of a process."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return {int(task.name) for task in tasks if "/IO/" in (task / "comm").read_text()}


@contextmanager
def stopped(thread: int) -> Iterator[None]:
    """Stop one thread of a child, which then gets no core at all; the others go on."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    ptrace.restype = ctypes.c_long

    def ask(request: int) -> None:
        if ptrace(request, thread, None, None) != 0:
            raise OSError(ctypes.get_errno(), "the thread cannot be traced")

    ask(_PTRACE_SEIZE)
    try:
        ask(_PTRACE_INTERRUPT)
        os.waitpid(thread, _WALL)
        yield
    finally:
        ask(_PTRACE_DETACH)


@pytest.mark.slow
def test_a_supervisor_whose_reading_stands_takes_nobody_for_dead(tmp_path: Path) -> None:
    """BUS-2, FLEET-5: what the hosts say waits in the kernel, for far longer than they may be
    silent, while the bus goes on judging them."""
    with local_context(heartbeat=0.5, state_dir=tmp_path, orphan_grace=300) as ctx:
        # A thread gets its name only once it runs, which on a busy machine is a moment later.
        bus = ctx._run.bus.pid
        wait_until(lambda: find_zmq_threads(bus), PATIENCE, what="the bus to have its thread")
        (thread,) = find_zmq_threads(bus)
        hosts = ctx.request_hosts(100)
        (pid,) = start_simulated_hosts(ctx, 100)
        assert wait([host.hostname() for host in hosts], timeout=PATIENCE).not_done == set()
        with stopped(thread):
            wait_until(
                lambda: ctx.status().lag_seconds > 8.0, PATIENCE, what="the reading to fall behind"
            )
        wait_until(lambda: ctx.status().lag_seconds < 0.5, PATIENCE, what="the reading to catch up")
        assert {host.lost_reason for host in hosts} == {None}
        os.kill(pid, signal.SIGKILL)
        silent = [host.time_connection_lost() for host in hosts]
        assert wait(silent, timeout=PATIENCE).not_done == set(), "death is seen as ever"


@contextmanager
def descriptors(spare: int, hard: int | None = None) -> Iterator[None]:
    """Leave this process so many descriptors, until it asks for more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + spare, hard or before[1])
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.slow
def test_a_shells_limit_of_descriptors_is_no_limit_of_hosts() -> None:
    """The processes that this script starts have the limit that it was started with."""
    with descriptors(60):
        small = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        with local_context() as ctx:
            hosts = ctx.request_hosts(150)
            start_simulated_hosts(ctx, 149)
            (pid,) = ctx.start_local_managers(1)
            assert wait([host.hostname() for host in hosts], timeout=PATIENCE).not_done == set()
            assert resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] == small


@pytest.mark.slow
def test_managers_that_find_no_descriptor_are_counted_and_come_in_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with local_context() as ctx, caplog.at_level(logging.ERROR, "holdfast.supervisor"):
        hosts = ctx.request_hosts(60)
        bus = ctx._run.bus.pid
        before = resource.prlimit(bus, resource.RLIMIT_NOFILE)
        few = len(os.listdir(f"/proc/{bus}/fd")) + 40
        resource.prlimit(bus, resource.RLIMIT_NOFILE, (few, before[1]))
        start_simulated_hosts(ctx, 60)
        try:
            wait_until(
                lambda: ctx.status().refused.get("no descriptor"),
                PATIENCE,
                what="the count of those outside",
            )
            assert not all(host.attached for host in hosts)
        finally:
            resource.prlimit(bus, resource.RLIMIT_NOFILE, before)
        assert wait([host.hostname() for host in hosts], timeout=PATIENCE).not_done == set()
        assert [record.message.partition(":")[0] for record in caplog.records] == [
            "managers cannot connect"
        ]
