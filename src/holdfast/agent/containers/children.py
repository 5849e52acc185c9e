"""Start, await and end the runner's children; a stop may come at any time.

There is one poll loop, without threads. Orphans below the runner are reaped, too: podman's monitor
detaches itself from podman and becomes a child of the runner (BOX-1).
"""

import os
import select
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from holdfast.process.spawn import Child, SpawnRequest, read_start, signal_group, spawn
from holdfast.process.syscalls import become_subreaper
from holdfast.process.table import read_children
from holdfast.process.watch import Exit, Watcher

_TERM_SECONDS = 1.0  # for a client to tidy up between TERM and KILL
_TURN_SECONDS = 0.5
_MAX_OUTPUT_BYTES = 256 * 1024


class Stopped(Exception):
    """Raised where the guardian has told the task to stop."""


class TimedOut(Exception):
    """Raised where a child took longer than its limit, and was ended. text: its output."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Program:
    """One child process. exit: the way it ended; None while it runs. out: the file of its
    output."""

    def __init__(self, child: Child, out: Path | None) -> None:
        self.child = child
        self.out = out
        self.exit: Exit | None = None

    @property
    def code(self) -> int:
        """Return the program's exit code as a shell gives it: 128 and the signal's number after a
        signal."""
        assert self.exit is not None
        code = self.exit.exit_code
        return 128 + (self.exit.signal or 0) if code is None else code

    def read(self) -> str:
        """Return the program's output so far; only the end if the output is long."""
        if self.out is None:
            return ""
        try:
            with self.out.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MAX_OUTPUT_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


class Children:
    """Holds all children of this process, which becomes their sub-reaper. folder: the folder for
    their output."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = dict(environment)
        self._programs: dict[int, Program] = {}
        self._number = 0
        self.stop_asked = False
        become_subreaper()
        self._watcher = Watcher()
        self._wake_fd, write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._take_signal)
        # A handler wakes the poll when an orphan ends, because there is no pidfd of an orphan.
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._poll = select.poll()
        self._poll.register(self._watcher.fileno(), select.POLLIN)
        self._poll.register(self._wake_fd, select.POLLIN)

    def _take_signal(self, *_: object) -> None:
        self.stop_asked = True

    def start(
        self,
        argv: list[str],
        *,
        variables: Mapping[str, str] | None = None,
        loud: bool = False,
        stdin: str | None = None,
    ) -> Program:
        """Start a program. loud: True if its output goes to this process's own output and into
        no file. stdin: the path of its standard input. Raises OSError."""
        out = None
        if not loud:
            self._number += 1
            out = self._folder / f"step-{self._number}"
        path = str(out) if out else None
        env = {**self._environment, **(variables or {})}
        request = SpawnRequest(argv=tuple(argv), env=env, stdin=stdin, stdout=path, stderr=path)
        child = spawn(request)
        program = Program(child, out)
        self._programs[child.pid] = program
        self._watcher.watch_child(child.pid, child.pidfd)
        os.set_blocking(child.error_fd, True)
        sentence = read_start(child, request)
        if sentence:
            raise FileNotFoundError(sentence)
        return program

    def turn(self, seconds: float) -> None:
        """Wait until something happens, for `seconds` at most, and note which programs ended."""
        self._poll.poll(seconds * 1000)
        try:
            os.read(self._wake_fd, 4096)
        except BlockingIOError:
            pass
        for found in self._watcher.collect():
            program = self._programs.pop(found.pid, None)
            if program is not None:
                program.exit = found

    def run(
        self,
        argv: list[str],
        seconds: float,
        *,
        variables: Mapping[str, str] | None = None,
        may_stop: bool = False,
        each: Callable[[str], None] | None = None,
    ) -> tuple[int, str]:
        """Run a program to its end; return its exit code and its output.

        may_stop: True to end the program when the task is told to stop. each: called at least every
        half second with the output so far. Raises TimedOut, Stopped (both once the program is
        gone), OSError.
        """
        program = self.start(argv, variables=variables)
        give_up_at = time.monotonic() + seconds
        while program.exit is None:
            left = give_up_at - time.monotonic()
            if left <= 0 or (may_stop and self.stop_asked):
                text = program.read()
                self.end(program)
                raise TimedOut(text) if left <= 0 else Stopped
            self.turn(min(left, _TURN_SECONDS))
            if each is not None:
                each(program.read())
        text = program.read()
        self._drop_output(program)
        return program.code, text

    def end(self, program: Program) -> None:
        """Send TERM to the program's process group, and KILL after a second."""
        kill_at = time.monotonic() + _TERM_SECONDS
        number = signal.SIGTERM
        while program.exit is None:
            signal_group(program.child.pid, number)
            while program.exit is None and time.monotonic() < kill_at:
                self.turn(max(0.0, kill_at - time.monotonic()))
            number, kill_at = signal.SIGKILL, time.monotonic() + _TERM_SECONDS
        self._drop_output(program)

    def wait_until_gone(self, seconds: float) -> None:
        """Wait until no child is left, adopted ones included, for `seconds` at most."""
        give_up_at = time.monotonic() + seconds
        while read_children(os.getpid()) and (left := give_up_at - time.monotonic()) > 0:
            self.turn(min(left, 0.05))

    @staticmethod
    def _drop_output(program: Program) -> None:
        if program.out is not None:
            program.out.unlink(missing_ok=True)
