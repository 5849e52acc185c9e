"""Terminals: of a shell in a task, and of a job that was begun with one."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.waits import Patience, wait_exit, wait_until

pytestmark = pytest.mark.slow


class Typist:
    """A command of the CLI in a terminal of its own, and a person who types there."""

    def __init__(self, cluster: Cluster, *words: str, rows: int = 33, cols: int = 111) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        token = cluster.controller.token_file.read_text().strip()
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "holdfast.cli", *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            cwd=cluster.folder,
            start_new_session=True,
            env=clean_environment(
                HOLDFAST_URL=cluster.controller.url, HOLDFAST_TOKEN=token, TERM="xterm"
            ),
        )
        os.close(slave)
        self.seen = b""

    def types(self, text: str) -> None:
        os.write(self._master, text.encode())

    def resizes(self, rows: int, cols: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))
        self.process.send_signal(28)  # WINCH, which the kernel sends to a terminal's own session

    def reads(self, word: str, seconds: float = 30.0) -> bytes:
        """Read until a word is there; forget what was before it."""
        patience = Patience(seconds)
        while word.encode() not in self.seen:
            assert not patience.over, (word, self.seen)
            if select.select([self._master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self._master, 1 << 16)
                except OSError:
                    break
        before, found, self.seen = self.seen.partition(word.encode())
        assert found, before
        return before

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def typists() -> Iterator[list[Typist]]:
    found: list[Typist] = []
    yield found
    for typist in found:
        typist.close()


@pytest.fixture(scope="module")
def job(shared: Cluster) -> str:
    shared.add_host("inside", cpu_slots=8)
    job_id = shared.submit("sh", "-c", "exec sleep 600", env={"SHELL": "/bin/sh", "PS1": "ready> "})
    shared.until(job_id, "running")
    return job_id


def test_a_shell_has_a_size_ctrl_c_and_an_exit_code(
    shared: Cluster, job: str, typists: list[Typist]
) -> None:
    typists.append(me := Typist(shared, "shell", job))
    me.types("echo a$((1+1))c; stty size\r")
    me.reads("a2c")
    me.reads("33 111")
    me.resizes(44, 99)
    me.types("stty size\r")
    me.reads("44 99")
    me.types("sleep 100; echo over\r")
    me.types("echo still $((2+3))\x03\r")  # Ctrl-C, which drops the line as well
    me.types("echo after $((40+2))\r")
    me.reads("after 42")
    me.types("exit 9\r")
    assert wait_exit(me.process, 30) == 9


def test_a_job_with_a_terminal_is_left_and_come_back_to(
    shared: Cluster, job: str, typists: list[Typist]
) -> None:
    typists.append(first := Typist(shared, "run", "-it", "--", "sh"))
    first.types("kept=blue; echo on $((20+1))\r")
    first.reads("on 21")
    mine = next(found for found in shared.client.jobs() if found.spec.terminal)
    typists.append(second := Typist(shared, "attach", mine.id))
    second.reads("you read along")
    second.reads("on 21")
    first.types("\x10\x11")
    first.reads("left; back to it")
    assert wait_exit(first.process, 30) == 0
    typists.append(third := Typist(shared, "attach", mine.id))
    third.types("echo still $kept\r")
    third.reads("still blue")
    second.reads("still blue")
    shared.host_of(mine.id).kill_agent()
    third.reads("the line is back")
    third.types("echo yet $kept\r")
    third.reads("yet blue")
    third.types("exit 4\r")
    assert wait_exit(third.process, 30) == 4
    assert shared.until(mine.id, "failed").exit_code == 4
    assert b"still blue" in shared.output(mine.id)


def test_a_shell_outlives_the_controller(shared: Cluster, job: str, typists: list[Typist]) -> None:
    typists.append(me := Typist(shared, "shell", job))
    me.types("kept=red; echo on $((20+3))\r")
    me.reads("on 23")
    shared.controller.kill()
    shared.controller.start()
    me.reads("the line is back", 60)
    me.types("echo still $kept\r")
    me.reads("still red")
    me.types("exit\r")
    assert wait_exit(me.process, 30) == 0
    wait_until(lambda: not [s for s in shared.client.sessions(job) if s.kind == "shell"], 30)


def test_a_job_that_its_person_left_is_told_and_ends_and_a_key_keeps_it(shared: Cluster) -> None:
    """AWAY-1, AWAY-2, and AGT-6: it may save what is open, and ends by itself."""
    shared.add_host("left", cpu_slots=2, queues=["left"])
    shared.set_queue("left")
    fields = {"terminal": True, "interactive": True, "idle_timeout": 3, "queue": "left"}
    program = "trap 'echo saved what was open; exit 0' TERM; cat; wait"
    job_id = shared.submit("sh", "-c", program, **fields)
    shared.until(job_id, "running")
    told: list[str] = []
    with shared.client.open_session(job_id, kind="attach", tty=True) as session:
        session.on_notice = told.append
        patience = Patience(30.0)
        while not told and not patience.over:
            session.read(0.1)
        session.write(b"still here\n")
        while len(told) < 2 and not patience.over:
            session.read(0.1)
        assert shared.client.job(job_id).state.value == "running"
        assert "one key keeps it" in told[1]
        ended = shared.until(job_id, "failed")
    assert (ended.cause, ended.exit_code) == ("left_idle", 80)
    assert "its user left it: no key, no traffic and no work for" in ended.reason
    assert b"saved what was open" in shared.output(job_id)


def test_a_shell_whose_client_was_killed_is_come_back_to(
    shared: Cluster, job: str, typists: list[Typist]
) -> None:
    typists.append(me := Typist(shared, "shell", job))
    me.types("kept=green; echo on $((20+4))\r")
    me.reads("on 24")
    (mine,) = (one for one in shared.client.sessions(job) if one.kind == "shell")
    me.process.kill()
    typists.append(back := Typist(shared, "attach", job, "--session", mine.id))
    back.types("echo still $kept\r")
    back.reads("still green")
    back.types("exit 5\r")
    assert wait_exit(back.process, 30) == 5
    wait_until(lambda: mine.id not in {one.id for one in shared.client.sessions(job)})
