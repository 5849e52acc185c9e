"""Output through the log writer: nothing that a program wrote is missing from its log, or it is
counted."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.process.nursery import ProgramRun
from holdfast.process.output import program
from holdfast.process.output.writer import OutputHome
from holdfast.process.syscalls import PR_SET_CHILD_SUBREAPER, become_subreaper
from holdfast.wire.guardian import StreamEnd
from tests.unit.process.test_nursery import Home
from tests.waits import wait_until

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    become_subreaper()
    home = Home(tmp_path)
    yield home
    home.close()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def start_logged(home: Home, line: str, **more: object) -> ProgramRun:
    logs = {"stdout": str(home.folder / "out"), "stderr": str(home.folder / "err")}
    return home.start("/bin/sh", "-c", line, **{**logs, **more})


def find_writer(home: Home) -> int:
    child = home.nursery._output._child
    assert child is not None
    return child.pid


# ---- what a program does with its standard streams


@pytest.mark.parametrize(
    "opens",
    [
        "echo three > /dev/stderr",
        "echo three > /proc/self/fd/2",
        "echo three > /proc/$$/fd/2",
        "echo three | tee /dev/stderr >/dev/null",
        "exec 2>/dev/stderr; echo three >&2",
        ": > /dev/stderr; truncate -s 0 /dev/stderr 2>/dev/null; echo three >&2",
        "echo three | dd of=/dev/stderr status=none",
    ],
)
def test_a_program_that_opens_its_log_by_name_keeps_what_it_wrote_before(
    home: Home, opens: str
) -> None:
    run = start_logged(home, f"echo one >&2; echo two >&2; {opens}; echo four >&2")
    home.finish(run)
    assert (home.folder / "err").read_text().split() == ["one", "two", "three", "four"]


def test_a_program_that_prints_nothing_has_the_file_of_its_stdout_alone(home: Home) -> None:
    """The file of stdout shows that the program was started; the file of stderr comes with its first byte."""
    home.finish(start_logged(home, "exit 0"))
    assert [path.name for path in home.folder.iterdir()] == ["out"]
    home.finish(start_logged(home, "echo one >&2"))
    assert (home.folder / "err").read_text() == "one\n"


@pytest.mark.skipif(os.getuid() != 0, reason="only root may become another user")
def test_a_program_that_became_another_user_opens_its_log_by_name(home: Home) -> None:
    code = "import os; os.setuid(65534); open('/dev/stderr', 'w').write('two\\n')"
    run = start_logged(home, f'echo one >&2; {sys.executable} -S -c "{code}"; echo three >&2')
    home.finish(run)
    assert (home.folder / "err").read_text().split() == ["one", "two", "three"]


def test_both_streams_into_one_file_keep_their_order(home: Home) -> None:
    path = str(home.folder / "both")
    numbers = "; ".join(f"echo {n} >&{1 + n % 2}" for n in range(20))
    run = start_logged(home, numbers, stdout=path, stderr=path)
    home.finish(run)
    assert Path(path).read_text().split() == [str(n) for n in range(20)]


def test_an_end_is_said_after_the_last_byte_is_in_the_log(home: Home) -> None:
    run = start_logged(home, "head -c 5000000 /dev/zero; echo last >&2; exit 3")
    home.finish(run)
    assert (home.folder / "out").stat().st_size == 5_000_000
    assert run.output[str(home.folder / "out")] == StreamEnd(size=5_000_000)
    assert (home.folder / "err").read_text() == "last\n"


def test_a_stranger_that_holds_a_programs_output_does_not_hold_its_end(home: Home) -> None:
    os.mkfifo(home.folder / "in")
    run = start_logged(home, "echo here; read line < in; exit 0", cwd=str(home.folder))
    home.read_line("out")
    with open(f"/proc/{run.pid}/fd/1", "wb"):
        (home.folder / "in").write_text("go\n")
        home.finish(run)
    assert (home.folder / "out").read_text() == "here\n"


# ---- what is lost is counted


def test_bytes_that_the_disk_does_not_take_are_counted_with_the_reason(home: Home) -> None:
    run = start_logged(home, "head -c 100000 /dev/zero; echo fine >&2", stdout="/dev/full")
    home.finish(run)
    assert run.exit is not None
    assert run.exit.exit_code == 0
    lost = run.output["/dev/full"]
    assert (lost.size, lost.lost_bytes, lost.reason) == (
        100_000,
        100_000,
        "No space left on device",
    )
    assert run.output[str(home.folder / "err")] == StreamEnd(size=5)


def test_a_lost_part_is_a_hole_so_that_later_offsets_stay_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_fd, False)
    stream = program.Stream(read_fd, os.fsencode(tmp_path / "log"))
    os.write(write_fd, b"first ")
    assert not stream.pump()

    def refuse(fd: int, data: bytes) -> int:
        raise OSError(28, "the disk is full")

    with monkeypatch.context() as full:
        full.setattr(program.os, "write", refuse)
        ctypes.CDLL(None).write(write_fd, b"lost ", 5)
        assert not stream.pump()
    os.write(write_fd, b"last")
    os.close(write_fd)
    assert stream.pump()
    stream.close()
    assert (tmp_path / "log").read_bytes() == b"first \0\0\0\0\0last"
    assert (stream.size, stream.lost) == (15, 5)


def test_a_log_that_was_removed_counts_as_lost(home: Home) -> None:
    run = start_logged(home, "echo gone; rm out", cwd=str(home.folder))
    home.finish(run)
    end = run.output[str(home.folder / "out")]
    assert end.size == 5
    if not (home.folder / "out").exists():
        assert (end.lost_bytes, end.reason) == (5, "its log file was removed while it ran")


# ---- the ends of the log writer


def test_a_log_writer_that_is_killed_loses_nothing(home: Home) -> None:
    run = start_logged(home, "for n in 1 2 3 4 5 6 7 8; do echo line $n; sleep 0.05; done")
    home.turn_until(lambda: (home.folder / "out").exists(), "a first line")
    os.kill(find_writer(home), signal.SIGKILL)
    home.finish(run)
    assert (home.folder / "out").read_text() == "".join(f"line {n}\n" for n in range(1, 9))


def test_a_log_writer_is_deaf_to_signals_that_end_other_processes(home: Home) -> None:
    first = start_logged(home, "echo one")
    home.finish(first)
    writer = find_writer(home)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(writer, number)
    home.finish(start_logged(home, "echo two", name="second"))
    assert find_writer(home) == writer
    assert (home.folder / "out").read_text() == "one\ntwo\n"


def test_a_log_writer_outlives_its_owner_until_the_pipes_have_ended(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    read_fd, write_fd = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(read_fd, False)
    words = [sys.executable, "-I", "-S", program.__file__, str(theirs.fileno())]
    writer = subprocess.Popen(words, pass_fds=[theirs.fileno()])
    theirs.close()
    path = tmp_path / "log"
    socket.send_fds(ours, [b"open\x001\0" + os.fsencode(path)], [read_fd])
    os.write(write_fd, b"before\n")
    wait_until(path.exists, what="the first line")
    ours.close()
    os.close(read_fd)
    os.write(write_fd, b"after\n")
    os.close(write_fd)
    assert writer.wait(20) == 0
    assert path.read_bytes() == b"before\nafter\n"


def test_without_a_log_writer_programs_hold_their_logs_themselves(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: OutputHome) -> None:
        self._fail(OSError(11, "no process can be made"))

    monkeypatch.setattr(OutputHome, "_start", fail)
    run = start_logged(home, "echo one; echo two >&2")
    home.finish(run)
    assert run.output == {}
    assert (home.folder / "out").read_text() == "one\n"
    assert (home.folder / "err").read_text() == "two\n"


# ---- what is left in the background


def test_what_a_program_leaves_running_is_named(home: Home) -> None:
    run = start_logged(home, "sleep 60 & exit 0")
    home.finish(run)
    assert run.left_running == ["sleep"]


def test_a_helper_that_goes_by_itself_in_a_moment_is_not_named(home: Home) -> None:
    run = start_logged(home, "sleep 0.03 & exit 0")
    home.finish(run)
    assert run.left_running == []


@pytest.mark.parametrize("module", ["resource_tracker", "forkserver"])
def test_a_helper_of_multiprocessing_is_not_named(home: Home, module: str) -> None:
    """Python starts it, not the user, and it outlives what it serves on purpose."""
    (home.folder / f"{module}.py").write_text("import time\nmain = lambda fd: time.sleep(60)\n")
    code = f"from {module} import main;main(5)"
    run = start_logged(
        home, f"cd {home.folder}; {sys.executable} -S -c '{code}' & sleep 60 & exit 0"
    )
    home.finish(run)
    assert run.left_running == ["sleep"]


# ---- pipelines that are told to stop

SAVES = """
import signal, sys, time
def save(*_):
    print('saving', flush=True); time.sleep(0.2); print('saved', flush=True)
    open('kept', 'w').close(); sys.exit(0)
signal.signal(signal.SIGTERM, save)
print('ready', flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("tail", ["| tee log", "| cat | tee log | cat", "> >(cat)"])
def test_what_reads_the_output_of_a_program_that_saves_outlives_it(home: Home, tail: str) -> None:
    """PIPE-1."""
    (home.folder / "save.py").write_text(SAVES)
    shell = "/bin/bash" if ">(" in tail else "/bin/sh"
    logs = {"stdout": str(home.folder / "out"), "stderr": str(home.folder / "err")}
    line = f"{sys.executable} -S save.py 2>&1 {tail}; exit 0"
    run = home.start(shell, "-c", line, **logs)
    home.read_line("out")
    home.nursery.end(run, 20.0)
    home.finish(run)
    assert (home.folder / "out").read_text() == "ready\nsaving\nsaved\n"
    assert (home.folder / "kept").exists()


def test_a_reader_that_the_end_of_its_input_does_not_end_is_told_too(home: Home) -> None:
    code = "print('ready', flush=True); import time; time.sleep(600)"
    run = start_logged(home, f'sleep 600 | {sys.executable} -S -c "{code}"')
    home.read_line("out")
    home.nursery.end(run, 600.0)
    home.finish(run)


def test_two_that_read_from_each_other_are_both_told(home: Home) -> None:
    os.mkfifo(home.folder / "back")
    line = "cat < back | { echo ready >&2; cat; } > back"
    run = start_logged(home, line, cwd=str(home.folder))
    home.read_line("err")
    home.nursery.end(run, 600.0)
    home.finish(run)
