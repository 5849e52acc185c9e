"""`top` and `jobs --watch` in a real terminal: they draw, follow its size, and give it back as it was
at every ending."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.wire.api import Why
from tests.unit.cli.stub import JOB, Answer, Stub, host_record, job_record
from tests.waits import wait_exit, wait_until

pytestmark = pytest.mark.slow
ALT, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process, self._master, self._slave = process, master, slave
        self.modes: list[Any] = termios.tcgetattr(slave)
        self.seen = b""

    def read(self) -> bytes:
        """Take what came, and return all of it so far."""
        while select.select([self._master], [], [], 0)[0]:
            self.seen += os.read(self._master, 65536)
        return self.seen

    def until(self, text: bytes, seconds: float = 20) -> None:
        """Wait until the program has written this."""
        wait_until(lambda: text in self.read(), seconds, what=f"{text!r} on the screen")

    def frame(self) -> list[str]:
        """Return the lines of the last screen that was drawn whole."""
        whole = [one for one in self.read().split(b"\x1b[H") if b"\x1b[J" in one]
        text = re.sub(rb"\x1b\[[?0-9;]*[a-zA-Z]", b"", whole[-1].partition(b"\x1b[J")[0])
        return text.decode().split("\r\n")

    def forget(self) -> None:
        """Look at nothing that came so far."""
        self.read()
        self.seen = b""

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    @property
    def pid(self) -> int:
        """Return the program's pid; it is the only child of its shell."""
        shell = self.process.pid
        return int(Path(f"/proc/{shell}/task/{shell}/children").read_text().split()[0])

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        os.kill(self.pid, signal.SIGWINCH)

    def is_given_back(self) -> bool:
        """Return whether the terminal's modes, cursor and text are its own again."""
        said = self.read()
        shown = said.rfind(BACK) > said.rfind(ALT) and said.rfind(b"\x1b[?25h") > said.rfind(
            b"\x1b[?25l"
        )
        return shown and termios.tcgetattr(self._slave) == self.modes


@contextmanager
def terminal(stub: Stub, *words: str, columns: int = 80, lines: int = 24) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    environment = {
        **{n: v for n, v in os.environ.items() if n not in ("COLUMNS", "LINES")},
        "HOLDFAST_URL": stub.url,
        "HOLDFAST_TOKEN": "secret",
        "TERM": "xterm",
        "NO_COLOR": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "holdfast", *words],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment,
        preexec_fn=lambda: _own(slave),
    )
    found = Terminal(process, master, slave)
    try:
        yield found
    finally:
        if process.poll() is None:
            os.kill(found.pid, signal.SIGKILL)
        process.wait()
        os.close(master)
        os.close(slave)


def _own(slave: int) -> None:
    """Lead a session whose terminal this is, as a shell does, and go on as its child in the
    foreground: a program without a shell is not stopped."""
    os.setsid()
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    child = os.fork()
    if child:
        os.closerange(3, 1024)
        _, status_ = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status_) & 0xFF)
    os.setpgid(0, 0)
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
    os.tcsetpgrp(slave, os.getpid())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTTOU])


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.fixture
def busy(stub: Stub) -> Stub:
    jobs = [job_record(name="train", step=5, total=10)]
    stub.on("GET /v1/jobs", Answer({"items": jobs, "next": None}))
    stub.on("GET /v1/hosts", Answer({"items": [host_record(name="box7")], "next": None}))
    stub.on(
        f"GET /v1/jobs/{JOB}/why",
        Answer(Why(job_id=JOB, state="running", summary="it runs well", lines=[])),
    )
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record()))
    stub.on(f"POST /v1/jobs/{JOB}/cancel", Answer(job_record(state="draining")))
    return stub


def asked(stub: Stub, what: str) -> Sequence[str]:
    return [f"{r.method} {r.path}" for r in stub.requests if what in r.path]


def test_top_draws_and_its_keys_act(busy: Stub) -> None:
    with terminal(busy, "top") as screen:
        screen.until(b"train")
        screen.until(b"box7")
        screen.press(b"w")
        screen.until(b"it runs well")
        screen.press(b"x")
        screen.until(b"q quit")
        screen.press(b"c")
        screen.until(b"? y/n")
        screen.press(b"n")
        screen.press(b"c")
        screen.press(b"y")
        screen.until(b"is draining")
        assert len(asked(busy, "/cancel")) == 1
        screen.resize(60, 10)
        wait_until(lambda: len(screen.frame()) == 10, 20, what="a screen of the new size")
        assert max(len(line) for line in screen.frame()) <= 60
        assert any("train" in line for line in screen.frame())
        screen.press(b"q")
        wait_exit(screen.process, 10)
        assert screen.process.returncode == 0
        assert screen.is_given_back()


@pytest.mark.parametrize(
    ("ending", "code"),
    [(b"\x03", 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)],
)
@pytest.mark.parametrize("words", [("top",), ("jobs", "--watch")])
def test_the_terminal_is_given_back_at_every_ending(
    busy: Stub, words: tuple[str, ...], ending: bytes | signal.Signals, code: int
) -> None:
    """SCREEN-1"""
    with terminal(busy, *words) as screen:
        screen.until(b"train")
        assert not screen.is_given_back()
        if isinstance(ending, bytes):
            screen.press(ending)
        else:
            os.kill(screen.pid, ending)
        wait_exit(screen.process, 10)
        assert screen.process.returncode == code
        assert screen.is_given_back()


def test_a_program_that_is_stopped_gives_the_terminal_back_and_takes_it_again(busy: Stub) -> None:
    """SCREEN-1"""
    with terminal(busy, "top") as screen:
        screen.until(b"train")
        screen.press(b"\x1a")
        wait_until(screen.is_given_back, 10, what="the terminal to be given back")
        screen.forget()
        wait_until(lambda: _is_stopped(screen.pid), 10, what="the program to be stopped")
        os.kill(screen.pid, signal.SIGCONT)
        screen.until(ALT)
        screen.until(b"train")
        screen.press(b"q")
        wait_exit(screen.process, 10)
        assert screen.is_given_back()


def test_a_bug_gives_the_terminal_back_before_its_traceback(busy: Stub) -> None:
    """SCREEN-1"""
    code = (
        "import sys; from holdfast.cli.live.screen import Screen\n"
        "with Screen() as screen:\n  screen.draw(['drawn']); screen.read_key(60); raise RuntimeError('a bug')\n"
    )
    with terminal(busy, "version") as other:
        wait_exit(other.process, 10)
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=other._slave,
            stdout=other._slave,
            stderr=other._slave,
        )
        other.until(b"drawn")
        other.press(b"x")
        wait_exit(process, 10)
        assert other.is_given_back()
        said = other.read()
        assert said.rfind(b"a bug") > said.rfind(BACK)


def test_the_output_is_followed_in_the_terminal_and_top_comes_back(busy: Stub) -> None:
    with terminal(busy, "top") as screen:
        screen.until(b"train")
        screen.forget()
        screen.press(b"s")  # there is no such job for `shell` here, so it ends with an error
        screen.until(b"Enter goes back")
        assert screen.is_given_back()
        screen.press(b"\n")
        screen.until(ALT)
        screen.press(b"q")
        wait_exit(screen.process, 10)
        assert screen.is_given_back()


def test_into_a_pipe_goes_one_look(busy: Stub) -> None:
    done = busy.run("top")
    assert done.exit_code == 0
    assert "train" in done.stdout
    assert "\x1b" not in done.stdout
    assert '"jobs": [' in busy.run("top", "--json").stdout
    assert busy.run("jobs", "--watch").stdout.count("train") == 1
