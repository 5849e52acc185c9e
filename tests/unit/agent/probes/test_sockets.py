"""Bytes that pass by send() and recv() are movement of the task, as those of read() and write() are."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys

import pytest

from holdfast.agent.probes import sockets
from holdfast.agent.probes.sockets import SocketReader
from holdfast.agent.probes.tree import TreeMeter, find_trees
from holdfast.core.ids import TaskKey
from tests.waits import wait_until

KEY = TaskKey("job_x", 0, 1)
MB = 1 << 20
# The child of the task is the one with the connection, because loaders and uploads are children, too.
SENDER = """
import os, socket, sys
to = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
if os.fork():
    to.close(); os.wait(); os._exit(0)
for size in sys.stdin:
    to.sendall(b"x" * int(size))
    while to.recv(1 << 16)[-1:] != b"!": pass
    print("sent", flush=True)
"""


@pytest.mark.parametrize("told", ["by connection", "by interface"])
def test_bytes_over_a_connection_are_movement(told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> sockets.Moved:
        raise OSError("no such question in this kernel")

    if told == "by interface":
        monkeypatch.setattr(sockets, "ask_connections", refuse)
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", SENDER, str(server.getsockname()[1])]
        with (
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
            ) as task,
            server.accept()[0] as peer,
        ):
            assert task.stdin is not None
            assert task.stdout is not None
            meter = TreeMeter()

            def read() -> int:
                tree = find_trees({KEY: task.pid}, os.getpid())[KEY]
                found = meter.read(tree, SocketReader()).io_bytes
                assert found is not None
                return found

            def pass_bytes(sent: int, received: int) -> None:
                assert task.stdin is not None
                assert task.stdout is not None
                task.stdin.write(b"%d\n" % sent)
                task.stdin.flush()
                left = sent
                while left:
                    left -= len(peer.recv(min(left, 1 << 16)))
                peer.sendall(b"y" * (received - 1) + b"!")
                assert task.stdout.readline() == b"sent\n"

            pass_bytes(1000, 1)
            before = read()
            pass_bytes(4 * MB, 1)
            # The kernel counts a byte when its acknowledgement came, which may be after its arrival.
            wait_until(lambda: read() - before >= 4 * MB)
            sent = read()
            pass_bytes(1, 2 * MB)
            wait_until(lambda: read() - sent >= 2 * MB)
            if told == "by connection":
                assert read() - before < 7 * MB
                quiet = read()
                with socket.create_connection(server.getsockname()) as other:  # of no task
                    other.sendall(b"z" * MB)
                assert read() - quiet < MB / 4
            task.stdin.close()
            task.wait(10)


def test_the_network_of_another_namespace_is_counted_by_its_interfaces() -> None:
    unshare = shutil.which("unshare")
    command = [unshare or "", "-Urn", "sh", "-c", "ip link set lo up; echo; exec sleep 600"]
    if unshare is None:
        pytest.skip("no unshare")
    with subprocess.Popen(command, stdout=subprocess.PIPE) as task:
        try:
            assert task.stdout is not None
            if not task.stdout.readline():
                pytest.skip("this machine allows no namespaces")
            namespace = os.readlink(f"/proc/{task.pid}/ns/net")
            assert set(SocketReader().read([task.pid]) or {}) >= {f"{namespace}/lo"}
        finally:
            task.kill()


def test_what_may_not_be_read_is_unknown_and_a_process_that_is_gone_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(["/bin/true"]) as gone:
        gone.wait()
    assert SocketReader().read([gone.pid]) == {}
    reader = SocketReader()

    def refuse(path: str) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(os, "readlink", refuse)
    assert reader.read([os.getpid()]) is None
