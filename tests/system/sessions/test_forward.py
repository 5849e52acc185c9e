"""Ports of running tasks: what is reached, and what is not."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.waits import wait_exit, wait_until

pytestmark = pytest.mark.slow

# Answers every connection with the attempt's number, then with what it reads, in capitals.
SERVER = """
import os, socket, sys, threading
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listens", flush=True)
def serve(end):
    end.sendall(os.environ["HOLDFAST_ATTEMPT"].encode() + b":")
    while data := end.recv(65536):
        end.sendall(data.upper())
    end.close()
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""
PORT = 23107


@pytest.fixture(scope="module")
def job(shared: Cluster) -> str:
    shared.add_host("inside", cpu_slots=8)
    job_id = shared.submit(
        "python3", "-c", SERVER, str(PORT), retry={"max_retries": 3, "retry_delay": 0.1}
    )
    shared.until(job_id, "running")
    wait_until(lambda: b"listens" in shared.output(job_id), 30)
    return job_id


def ask(port: int, words: bytes) -> bytes:
    """Send words over a new connection, end the sending, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", port), 30) as end:
        end.settimeout(30)
        end.sendall(words)
        end.shutdown(socket.SHUT_WR)
        found = b""
        while data := end.recv(65536):
            found += data
    return found


def test_a_connection_goes_to_the_tasks_port_with_its_half_close(shared: Cluster, job: str) -> None:
    data = b"abc" * 1_000_000
    with shared.client.forward_port(job, PORT) as forward:
        assert ask(forward.port, data) == b"1:" + data.upper()
        wait_until(
            lambda: not list_open(shared, job), 10, what="the connection to be over on record"
        )


def test_the_databases_port_is_not_reached(shared: Cluster, job: str) -> None:
    """FORWARD-1: the controller's own port is open on this machine, but no process of the job
    listens there."""
    refused: list[str] = []
    taken = shared.controller.port
    with (
        shared.client.forward_port(job, taken, on_refused=refused.append) as forward,
        shared.client.forward_port(job, PORT) as good,
    ):
        assert ask(forward.port, b"") == b""
        assert ask(good.port, b"x") == b"1:X"
    assert refused == [f"nothing of this job listens on {taken} (job {job}, rank 0)"]


def test_a_stuck_connection_stops_no_other(shared: Cluster, job: str) -> None:
    with shared.client.forward_port(job, PORT) as forward:
        stuck = socket.create_connection(("127.0.0.1", forward.port), 30)
        stuck.settimeout(2.0)
        with pytest.raises(TimeoutError):  # it never reads what comes back
            stuck.sendall(b"x" * (512 << 20))
        for _ in range(10):
            assert ask(forward.port, b"y") == b"1:Y"
        stuck.close()


def test_a_hundred_connections_at_once_are_all_made(shared: Cluster, job: str) -> None:
    refused: list[str] = []
    with (
        shared.client.forward_port(job, PORT, on_refused=refused.append) as forward,
        ThreadPoolExecutor(100) as together,
    ):
        found = list(together.map(lambda _: ask(forward.port, b"z"), range(100)))
    assert refused == []
    assert found == [b"1:Z"] * 100


def test_a_forward_outlives_the_controller(shared: Cluster, job: str) -> None:
    with shared.client.forward_port(job, PORT) as forward:
        assert ask(forward.port, b"abc") == b"1:ABC"
        shared.controller.kill()
        shared.controller.start()
        assert ask(forward.port, b"abc") == b"1:ABC"


def test_a_connection_ends_with_its_agent_and_the_next_one_is_made(
    shared: Cluster, job: str
) -> None:
    """No byte of a connection is sent twice, so one that its agent carried ends; the forward stays."""
    before = list_open(shared, job)
    with shared.client.forward_port(job, PORT) as forward:
        with socket.create_connection(("127.0.0.1", forward.port), 30) as end:
            end.settimeout(30)
            end.sendall(b"x")
            assert end.makefile("rb").read(3) == b"1:X"
            shared.host_of(job).kill_agent()
            with contextlib.suppress(ConnectionResetError):
                assert end.recv(1) == b""
        wait_until(lambda: ask(forward.port, b"y") == b"1:Y", 30)
    wait_until(lambda: list_open(shared, job) <= before, 30)


def test_a_killed_client_leaves_no_connection_behind(shared: Cluster, job: str) -> None:
    before = list_open(shared, job)
    token = shared.controller.token_file.read_text().strip()
    program = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast.cli", "port-forward", job, f"{PORT}:0"],
        env=clean_environment(HOLDFAST_URL=shared.controller.url, HOLDFAST_TOKEN=token),
        stdout=subprocess.PIPE,
    )
    with program, ExitStack() as ends:
        ends.callback(program.kill)
        assert program.stdout is not None
        address = program.stdout.readline().split()[0]
        assert address.startswith(b"http://127.0.0.1:"), "the name that no page of ours has"
        port = int(address.rpartition(b":")[2])
        end = ends.enter_context(socket.create_connection(("127.0.0.1", port), 30))
        end.sendall(b"x")
        assert end.makefile("rb").read(3) == b"1:X"
        assert len(list_open(shared, job) - before) == 1
        program.kill()
        end.settimeout(30)
        with contextlib.suppress(ConnectionResetError):
            assert end.recv(1) == b""
    wait_until(lambda: list_open(shared, job) <= before, 30)


def list_open(cluster: Cluster, job: str) -> set[str]:
    return {one.id for one in cluster.client.sessions(job) if one.state != "ended"}


def test_a_forward_follows_its_job_to_the_next_attempt(shared: Cluster, job: str) -> None:
    with shared.client.forward_port(job, PORT) as forward:
        assert ask(forward.port, b"") == b"1:"
        host = shared.host_of(job)
        for pid in host.task_pids(job):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: ask(forward.port, b"") == b"2:", 60)


def test_a_forward_ends_with_its_job_and_says_so(shared: Cluster) -> None:
    """Also where no connection ever came, or one is there and silent."""
    job_id = shared.submit("python3", "-c", SERVER, str(PORT + 1))
    shared.until(job_id, "running")
    wait_until(lambda: b"listens" in shared.output(job_id), 30)
    token = shared.controller.token_file.read_text().strip()
    with (
        shared.client.forward_port(job_id, PORT + 1) as forward,
        socket.create_connection(("127.0.0.1", forward.port), 30) as end,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli", "port-forward", job_id, f"{PORT + 1}:0"],
            env=clean_environment(HOLDFAST_URL=shared.controller.url, HOLDFAST_TOKEN=token),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        ) as program,
    ):  # fmt: skip
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline()
        assert end.recv(2) == b"1:"
        shared.client.cancel(job_id)
        shared.until(job_id, "cancelled")
        assert wait_exit(program, 15) == 0
        assert f"job {job_id} ended as cancelled; port".encode() in program.stderr.read()
        assert forward.wait(30)
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", forward.port), 5)
