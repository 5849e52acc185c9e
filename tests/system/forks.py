"""Controllers, hosts and host managers that are forked from a process which has imported them: most
of what starting one costs are imports, and system tests start hundreds.

This file is both ends. `python forks.py FD FAMILY` imports the family's modules and waits for
orders; each order is a fork that takes over the order's environment, output, folder and words,
shows them in /proc as a started program does, and runs what that program would. It holds no thread
and has run nothing before it forks. When the tests that asked for it are gone it ends, and before
that what it forked for them.

A guardian that was forked starts its agents by all steps of `process.spawn`, only that the last,
the exec, makes the fork what the exec would have.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

_ORDER_BYTES = 1 << 18
_ROOM_BYTES = 1 << 15  # for the words and the environment that a fork shows
# An interpreter or a loader reads these once, at its start.
READ_AT_START = ("PYTHON", "LD_")


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

    def __init__(self, family: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
        self._read_at_start = _pick_read_at_start(environment)
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._line, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _ORDER_BYTES)
        self._lock = threading.Lock()
        with theirs:
            number = theirs.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(number), family, " " * _ROOM_BYTES],
                stdin=subprocess.DEVNULL,
                env={**environment, "ROOM": " " * _ROOM_BYTES},
                pass_fds=[number],
                start_new_session=True,  # Ctrl-C is for the tests, which then end what they started
            )

    def start(
        self, words: list[str], environment: dict[str, str], output: int
    ) -> subprocess.Popen[bytes]:
        """Start the family's program with these words, its output into the file `output`."""
        assert _pick_read_at_start(environment) == self._read_at_start, "only a real start reads it"
        order = {"words": words, "environment": environment, "folder": os.getcwd()}
        return cast("subprocess.Popen[bytes]", ForkedProcess(self, self.ask(order, output)))

    def ask(self, order: dict[str, Any], *files: int) -> Any:
        """Send one order and return its answer."""
        with self._lock:
            socket.send_fds(self._line, [json.dumps(order).encode()], files)
            answer = self._line.recv(_ORDER_BYTES)
        assert answer, "the process that forks has ended"
        return json.loads(answer)


def _pick_read_at_start(environment: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(READ_AT_START)}


@functools.cache
def find_origin(family: str) -> Origin:
    """The process that forks programs of that family, one for all tests of this process."""
    return Origin(family)


# ---- the process that forks


class Program(NamedTuple):
    """What `python` with these arguments before its words runs, and the call that is the same."""

    arguments: tuple[str, ...]
    run: Callable[[list[str]], None]


class Family(NamedTuple):
    """What is imported before the fork, the program that a fork is, and the one it execs, which
    then is a fork of it."""

    modules: tuple[str, ...]
    program: Program
    execs: Program | None = None


def run_command_line(words: list[str]) -> None:
    """Be `python -m holdfast.cli`."""
    from holdfast.cli.main import main as run_cli

    sys.argv[1:] = words
    run_cli()


def run_host(words: list[str]) -> None:
    """Be `holdfast agent` with the options in a file: a guardian."""
    from holdfast.cli.up.run_part import run_agent

    with open(words[0], "rb") as file:
        options = json.load(file)
    sys.exit(run_agent(options))


def run_agent_module(words: list[str]) -> None:
    """Be `python -m holdfast.agent`."""
    sys.argv[1:] = words
    fork_for_popen(Program(("-P", "-m", "holdfast.agent.probes.worker"), run_probe_worker))
    runpy.run_module("holdfast.agent", run_name="__main__", alter_sys=True)


def run_probe_worker(words: list[str]) -> None:
    """Be `python -m holdfast.agent.probes.worker`."""
    from holdfast.agent.probes.worker import main as answer

    os._exit(answer(words))


def run_rig(part: str, words: list[str]) -> None:
    """Be one of the two programs of `guardian_rig.py`."""
    from tests.system.agent.guardian_rig import PARTS

    sys.exit(PARTS[part](words[0]))


RIG_FILE = str(Path(__file__).with_name("agent") / "guardian_rig.py")
FAMILIES = {
    "cli": Family(
        (
            "holdfast.cli.host_manager",
            "holdfast.cli.main",
            "holdfast.cli.up.server",
            "holdfast.controller.server",
            "holdfast.store.postgres.connection.migrate",
            "holdfast.store.postgres.store",
            "holdfast.supervisor.host.host_manager",
            "uvloop",
            "zmq",
        ),
        Program(("-P", "-m", "holdfast.cli"), run_command_line),
    ),
    "host": Family(
        (
            "holdfast.agent.agent",
            "holdfast.agent.guardian.guardian_folder",
            "holdfast.agent.guardian.loop",
            "holdfast.agent.journal",
            "holdfast.agent.guardian_env",
            "holdfast.agent.probes.amd",
            "holdfast.agent.probes.nvidia",
            "holdfast.agent.probes.worker",
            "holdfast.cli.up.run_part",
            "pynvml",
        ),
        Program(("-P", "-m", "holdfast.cli", "agent"), run_host),
        Program(("-P", "-m", "holdfast.agent"), run_agent_module),
    ),
    "rig": Family(
        ("tests.system.agent.guardian_rig",),
        Program((RIG_FILE, "guardian"), partial(run_rig, "guardian")),
        Program((RIG_FILE, "agent"), partial(run_rig, "agent")),
    ),
}


def fork_for_exec(program: Program) -> None:
    """From now on a fork of this process is that program where it would exec it."""
    from holdfast.process import syscalls

    really_exec, begins = syscalls.execve, [sys.executable, *program.arguments]

    def exec_or_be(path: bytes, argv: syscalls.WordArray, env: syscalls.WordArray) -> int:
        line, variables = list_words(argv.address), list_words(env.address)
        if line[: len(begins)] == begins:
            be(program.run, line, line[len(begins) :], variables)
        return really_exec(path, argv, env)

    syscalls.execve = exec_or_be


def fork_for_popen(program: Program) -> None:
    """From now on what `subprocess` starts in this process is a fork of it where it is that
    program."""
    really_start: Callable[..., int] = vars(subprocess)["_fork_exec"]
    begins = [sys.executable, *program.arguments]

    def start_or_fork(argv: Sequence[str], *more: Any) -> int:
        line = [os.fsdecode(word) for word in argv]
        environment, pipes = more[4], more[5:11]  # of stdin, stdout, stderr: to read, to write
        if line[: len(begins)] != begins or environment is not None:
            return really_start(argv, *more)
        pid = os.fork()
        if pid == 0:
            for number, end in enumerate((pipes[0], pipes[3], pipes[5])):
                if end != -1:
                    os.dup2(end, number)
            variables = [f"{k}={v}" for k, v in os.environ.items()]
            be(program.run, line, line[len(begins) :], variables)
        return pid

    vars(subprocess)["_fork_exec"] = start_or_fork


def list_words(address: int) -> list[str]:
    """The words of a NULL-terminated `char **`."""
    array, found = ctypes.cast(address, ctypes.POINTER(ctypes.c_char_p)), []
    while (word := array[len(found)]) is not None:
        found.append(os.fsdecode(word))
    return found


def take_over(line: Sequence[str], variables: list[str]) -> None:
    """Take this environment as one's own, and show it and the command line in /proc."""
    os.environ.clear()
    os.environ.update(word.split("=", 1) for word in variables)
    with open("/proc/self/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    for words, place in ((line, fields[45:47]), (variables, fields[47:49])):
        first, last = map(int, place)
        data = b"".join(os.fsencode(word) + b"\0" for word in words)
        assert len(data) <= last - first, "more than a fork can show"
        ctypes.memmove(first, data.ljust(last - first, b"\0"), last - first)


def be(
    run: Callable[[list[str]], None], line: list[str], words: list[str], variables: list[str]
) -> NoReturn:
    """Be what an exec would have made of this fork."""
    status = 1
    try:
        gc.freeze()  # what the parent has is never collected: its descriptors are others' now
        take_over(line, variables)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            if signal.getsignal(number) is not None:
                signal.signal(number, signal.SIG_DFL)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python does
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):  # the one that listed them
                if number > 2 and not os.get_inheritable(number):
                    os.close(number)
        from holdfast.process.starter import find_starter

        find_starter.cache_clear()
        run(words)
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def obey(line: socket.socket, family: Family) -> list[str] | None:
    """Fork as ordered; return the words in each fork, and None when no more orders come."""
    running = set[int]()
    while True:
        data, files, _, _ = socket.recv_fds(line, _ORDER_BYTES, 1)
        if not data:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
            return None
        order = json.loads(data)
        if "reap" in order:
            _, status = os.waitpid(order["reap"], 0)
            running.remove(order["reap"])
            line.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            line.close()
            for number in (1, 2):
                os.dup2(files[0], number)
            os.close(files[0])
            os.setsid()
            os.chdir(order["folder"])
            variables = [f"{k}={v}" for k, v in order["environment"].items()]
            take_over([sys.executable, *family.program.arguments, *order["words"]], variables)
            return list(order["words"])
        running.add(pid)
        os.close(files[0])
        line.send(json.dumps(pid).encode())


def main() -> None:
    """Import, and obey."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    line, family = socket.socket(fileno=int(sys.argv[1])), FAMILIES[sys.argv[2]]
    line.set_inheritable(False)
    for name in family.modules:
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a fork would lose a thread"
    take_over(sys.orig_argv[:5], [f"{k}={v}" for k, v in os.environ.items() if k != "ROOM"])
    gc.collect()
    gc.freeze()
    words = obey(line, family)
    if words is None:
        os._exit(0)
    if family.execs is not None:
        fork_for_exec(family.execs)
    family.program.run(words)


if __name__ == "__main__":
    main()
