"""Controllers and host managers that are forked from a process which has imported them: most of what
starting one costs are imports, and system tests start hundreds.

This file is both ends. `python forks.py FD` imports their modules and waits for orders; each order is a fork that takes over the order's environment, output and words, and runs the command
line as `python -m holdfast.cli` does. It holds no thread and has run nothing before it forks, and
it ends when the tests that asked for it are gone.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Any, cast

MODULES = (
    "holdfast.cli.host_manager",
    "holdfast.cli.main",
    "holdfast.cli.up.server",
    "holdfast.controller.server",
    "holdfast.store.postgres.connection.migrate",
    "holdfast.store.postgres.store",
    "holdfast.supervisor.host.host_manager",
    "uvloop",
    "zmq",
)
_ORDER_BYTES = 1 << 18


class ForkedProcess:
    """A process that another one forked for us: what tests use of `subprocess.Popen`."""

    def __init__(self, origin: Origin, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._origin = origin
        self._pidfd = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Return its exit status, None while it runs."""
        with self._lock:
            if self.returncode is None and select.select([self._pidfd], [], [], 0)[0]:
                self.returncode = self._origin.ask({"reap": self.pid})
                os.close(self._pidfd)
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            select.select([self._pidfd], [], [], timeout)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Signal it, if it is not known to have ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Origin:
    """Our end of the line to the process that forks."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._line, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ORDER_BYTES)
        self._lock = threading.Lock()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(number)],
                stdin=subprocess.DEVNULL,
                env=environment,
                pass_fds=[number],
            )

    def start(
        self, words: list[str], environment: dict[str, str], output: int
    ) -> subprocess.Popen[bytes]:
        """Start the command line with these words, its output into the file `output`."""
        order = {"words": words, "environment": environment, "folder": os.getcwd()}
        return cast("subprocess.Popen[bytes]", ForkedProcess(self, self.ask(order, output)))

    def ask(self, order: dict[str, Any], *files: int) -> Any:
        """Send one order and return its answer."""
        with self._lock:
            socket.send_fds(self._line, [json.dumps(order).encode()], files)
            answer = self._line.recv(_ORDER_BYTES)
        assert answer, "the process that forks has ended"
        return json.loads(answer)


@functools.cache
def find_origin() -> Origin:
    """The process that forks, one for all tests of this process."""
    return Origin({k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")})


# ---- the process that forks


def obey(line: socket.socket) -> list[str] | None:
    """Fork as ordered; return the words in each fork, and None when no more orders come."""
    while True:
        data, files, _, _ = socket.recv_fds(line, _ORDER_BYTES, 1)
        if not data:
            return None
        order = json.loads(data)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            line.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            for number in (1, 2):
                os.dup2(files[0], number)
            os.close(files[0])
            os.environ.clear()
            os.environ.update(order["environment"])
            os.chdir(order["folder"])
            return list(order["words"])
        os.close(files[0])
        line.send(json.dumps(pid).encode())


def main() -> None:
    """Import, and obey."""
    line = socket.socket(fileno=int(sys.argv[1]))
    line.set_inheritable(False)
    for name in MODULES:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose a thread"
    gc.collect()
    gc.freeze()
    words = obey(line)
    if words is not None:
        from holdfast.cli.main import main as run_command_line

        sys.argv[1:] = words
        run_command_line()


if __name__ == "__main__":
    main()
