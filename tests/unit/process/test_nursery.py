"""The nursery alone, with real processes: how starts fail, what is left at an exit, and what a
mishap costs."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import ValidationError
from holdfast.process.endings.ending import Signaller
from holdfast.process.loop import Mishaps, Poller
from holdfast.process.nursery import FIRST_SCAN_SECONDS, Nursery, ProgramEvents, ProgramRun
from holdfast.process.spawn import SpawnRequest
from holdfast.process.syscalls import PR_SET_CHILD_SUBREAPER, become_subreaper, read_boottime
from holdfast.process.table import ProcessEntry
from holdfast.process.tree import Forest
from tests.waits import Patience, is_alive

pytestmark = pytest.mark.usefixtures("way")

SPARED = b"holdfast-test-survives-sigkill"


class SparingSignaller(Signaller):
    """Spares processes whose command line says so from SIGKILL, while `spares`."""

    spares = True

    def send(self, entry: ProcessEntry, number: int) -> bool:
        try:
            words = Path(f"/proc/{entry.pid}/cmdline").read_bytes()
        except OSError:
            return False  # the process is gone
        if self.spares and number == signal.SIGKILL and SPARED in words:
            return False
        return super().send(entry, number)


class Home:
    """A nursery, its loop, and what it said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.notes: list[str] = []
        self.events: list[str] = []
        self.signaller = SparingSignaller()
        mishaps = Mishaps(self.notes.append)
        self.poller = Poller(mishaps)
        self.nursery = Nursery(
            f"test-{os.urandom(6).hex()}",
            self.poller,
            mishaps,
            kill_limit_seconds=0.3,
            signaller=self.signaller,
        )
        self.started: list[ProgramRun] = []
        self.deaf = 0  # how many ends the owner fails to take

    def start(self, *argv: str, name: str = "task", **more: object) -> ProgramRun:
        def say(word: str) -> Callable[[ProgramRun], None]:
            return lambda run: self.events.append(f"{name} {word}")

        def take_end(run: ProgramRun) -> None:
            if self.deaf:
                self.deaf -= 1
                raise RuntimeError("the owner fails to take an end")
            self.events.append(f"{name} ended")

        request = SpawnRequest(
            argv=argv,
            env={"PATH": os.environ["PATH"]},
            **{"cwd": str(self.folder), **more},  # type: ignore[arg-type]  # plain words stand for the typed value in a test
        )
        events = ProgramEvents(running=say("running"), exited=say("exited"), ended=take_end)
        run = self.nursery.start(request, name, events)
        self.started.append(run)
        return run

    def turn(self) -> None:
        self.nursery.collect()
        now = read_boottime()
        due = self.nursery.turn(now)
        self.poller.poll(max(0.0, min(0.05, due - now)))

    def turn_until(self, check: Callable[[], object], what: str) -> None:
        patience = Patience(20)
        while not check():
            assert not patience.over, f"{what}: {self.events} {self.notes}"
            self.turn()

    def finish(self, *runs: ProgramRun) -> None:
        self.turn_until(lambda: all(run.over for run in runs), "the end")

    def read_line(self, name: str) -> str:
        path = self.folder / name
        self.turn_until(lambda: path.exists() and path.read_text().endswith("\n"), f"line {name}")
        return path.read_text().strip()

    def close(self) -> None:
        self.deaf, self.signaller.spares = 0, False
        for run in self.started:
            self.nursery.end(run, 0.0)
        self.finish(*self.started)
        self.nursery.close()
        self.poller.close()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    become_subreaper()
    home = Home(tmp_path)
    yield home
    home.close()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def fork_sleeper() -> int:
    """A child that holds copies of all our descriptors, as one does between its fork and exec."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


# ---- what does not compete with a start


def test_the_first_look_at_all_processes_leaves_a_start_alone(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading /proc takes milliseconds, which the program would wait for."""
    looks: list[float] = []
    find_members = Forest.find_members

    def look(forest: Forest) -> object:
        looks.append(read_boottime())
        return find_members(forest)

    monkeypatch.setattr(Forest, "find_members", look)
    run = home.start("sleep", "60")
    home.turn_until(lambda: looks, "a look")
    assert looks[0] >= run.child.started_at + FIRST_SCAN_SECONDS


# ---- starts that fail


def test_what_cannot_be_started_was_never_there(home: Home) -> None:
    with pytest.raises(ValidationError):
        home.start("")
    assert not home.nursery.busy


@pytest.mark.parametrize(
    ("argv", "more", "sentence", "hosts_fault", "start_code"),
    [
        (["/no/such/program"], {}, "no such program", False, 127),
        (["/etc/passwd"], {}, "permission denied", False, 126),
        (["true"], {"cwd": "/no/such/folder"}, "cannot be entered", False, 127),
        (["true"], {"stdout": "/no/such/folder/out"}, "cannot be opened", True, None),
    ],
)
def test_a_failed_start_ends_with_its_sentence_and_never_runs(
    home: Home,
    argv: list[str],
    more: dict[str, object],
    sentence: str,
    hosts_fault: bool,
    start_code: int | None,
) -> None:
    run = home.start(*argv, **more)
    home.finish(run)
    assert sentence in (run.start_error or "")
    assert (run.child.hosts_fault, run.child.start_code) == (hosts_fault, start_code)
    assert home.events == ["task exited", "task ended"]


def test_a_child_that_is_killed_during_its_start_ends_by_that_signal(home: Home) -> None:
    """It waits before its exec, for a reader of the pipe that is its output."""
    os.mkfifo(home.folder / "pipe")
    run = home.start("true", stdout=str(home.folder / "pipe"))
    for _ in range(3):
        home.turn()
    assert not run.runs
    os.kill(run.pid, signal.SIGKILL)
    home.finish(run)
    assert run.exit is not None
    assert (run.exit.signal, run.start_error) == (signal.SIGKILL, None)


def test_a_program_can_be_ended_during_its_start(home: Home) -> None:
    os.mkfifo(home.folder / "pipe")
    run = home.start("true", stdout=str(home.folder / "pipe"))
    home.nursery.end(run, 0.0)
    home.finish(run)
    # On a crowded machine it takes longer to die than the kill limit, and is over before.
    home.turn_until(lambda: run.exit is not None, "its exit")
    assert run.exit is not None
    assert run.exit.signal == signal.SIGKILL


def test_a_start_without_a_poll_is_read_all_the_same(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has no memory for one descriptor more in the epoll."""

    def refuse(fd: int, handler: object) -> None:
        raise OSError(12, "no memory")

    with monkeypatch.context() as shortage:
        shortage.setattr(home.poller, "handle", refuse)
        run = home.start("sleep", "600")
        home.turn_until(lambda: run.runs, "the start")
    home.nursery.end(run, 0.0)
    home.finish(run)
    assert home.events == ["task running", "task exited", "task ended"]


def test_a_start_without_descriptors_fails_and_the_others_go_on(home: Home) -> None:
    """SPAWN-4."""
    other = home.start("sleep", "600", name="other")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.close(lowest := os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 8, limits[1]))
    try:
        with pytest.raises(OSError, match="descriptors"):
            home.start("true")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    home.nursery.end(other, 0.0)
    home.finish(other)
    assert home.events == ["other running", "other exited", "other ended"]


def test_what_fails_after_the_fork_kills_the_child_and_is_answered(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NURSERY-1."""

    def fail(fd: int, handler: object) -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as bug:
        bug.setattr(home.poller, "handle", fail)
        run = home.start("sleep", "600")
    home.finish(run)
    assert (run.child.hosts_fault, is_alive(run.pid)) == (True, False)
    assert "failed to take it in" in (run.start_error or "")
    assert home.events == ["task exited", "task ended"]


def test_a_start_leaves_nothing_in_the_poll_while_a_sibling_holds_its_descriptor(
    home: Home,
) -> None:
    """EPOLL-1: closed before it was unregistered, it would be reported without end."""
    run = home.start("sleep", "600")
    sibling = fork_sleeper()
    try:
        home.turn_until(lambda: run.runs, "the start")
        for _ in range(3):
            home.turn()
        assert home.notes == []
        assert select.select([home.poller], [], [], 0)[0] == [], "it spins"
    finally:
        os.kill(sibling, signal.SIGKILL)
        home.nursery.end(run, 0.0)
        home.finish(run)


def test_a_descriptor_without_a_handler_is_said_once_and_polled_no_longer(home: Home) -> None:
    """EPOLL-1, by an owner that closes too early."""
    read_fd, write_fd = os.pipe()
    heard: list[int] = []
    other_fd, other_write_fd = os.pipe()
    home.poller.handle(read_fd, heard.append)
    home.poller.handle(other_fd, lambda _: heard.append(len(os.read(other_fd, 16))))
    sibling = fork_sleeper()
    try:
        os.close(read_fd)
        home.poller.drop(read_fd)
        os.write(write_fd, b"x")
        for _ in range(3):
            home.poller.poll(0)
        assert [note for note in home.notes if "without a handler" in note] == home.notes
        assert len(home.notes) == 1
        os.write(other_write_fd, b"four")
        home.poller.poll(1)
        assert heard == [4]
        home.poller.drop(other_fd)
    finally:
        os.kill(sibling, signal.SIGKILL)
        for fd in (write_fd, other_fd, other_write_fd):
            os.close(fd)


# ---- exits


def test_a_program_that_exits_alone_is_over_at_once(home: Home) -> None:
    run = home.start("sh", "-c", "exit 7")
    home.finish(run)
    assert run.exit is not None
    assert (run.exit.exit_code, run.survivors, run.ending) == (7, [], None)
    assert home.events == ["task running", "task exited", "task ended"]


def test_what_a_program_leaves_gets_a_term_and_then_a_kill(home: Home) -> None:
    """TREE-2: it is over when the last of them is gone."""
    stay = "echo $$ > %s; while :; do sleep 0.05; done"
    stubborn = f"trap '' TERM; {stay % 'stubborn'}"
    polite = f"trap 'echo bye > said; exit' TERM; {stay % 'polite'}"
    code = 'sh -c "$1" & sh -c "$2" & while ! [ -e go ]; do sleep 0.01; done'
    run = home.start("sh", "-c", code, "sh", stubborn, polite)
    pids = [int(home.read_line("stubborn")), int(home.read_line("polite"))]
    assert all(map(is_alive, pids))
    (home.folder / "go").touch()
    home.finish(run)
    assert not any(map(is_alive, pids))
    assert home.read_line("said") == "bye"


def test_a_stop_reaches_each_process_of_a_tree_once_though_the_first_stays(home: Home) -> None:
    code = """
import os, signal, time
name = "first" if os.fork() else "child"
def say(*_):
    with open("said", "a") as file:
        file.write(f"{name}\\n")
signal.signal(signal.SIGTERM, say)
open(name, "w").write("ready\\n")
while True:
    time.sleep(60)
"""
    run = home.start(sys.executable, "-c", code)
    assert (home.read_line("child"), home.read_line("first")) == ("ready", "ready")
    home.nursery.end(run, 6.0)  # the child hears at half of it, because the first runs on
    home.turn_until(lambda: len(home.read_line("said").split()) == 2, "both said it")
    home.nursery.end(run, 0.2)
    home.finish(run)
    assert sorted(home.read_line("said").split()) == ["child", "first"]


def test_leftovers_that_nothing_kills_are_given_up_and_forgotten_when_told(home: Home) -> None:
    """NURSERY-2, with a signaller that spares them: what a process stuck in a driver looks like."""
    code = "import os, sys, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(600)"
    run = home.start(sys.executable, "-c", code, SPARED.decode())
    pid = int(home.read_line("pid"))
    home.nursery.end(run, 0.0)
    home.finish(run)
    assert (run.survivors, run.exit, is_alive(pid)) == ([pid], None, True)
    assert not home.nursery.busy
    os.kill(pid, signal.SIGKILL)
    home.turn_until(lambda: run.exit is not None, "its late exit")
    home.nursery.forget(run)
    assert home.events == ["task running", "task ended", "task exited"]


def test_a_sooner_kill_wins(home: Home) -> None:
    run = home.start("sh", "-c", "trap '' TERM; echo ready > ready; while :; do sleep 0.05; done")
    home.read_line("ready")
    for grace_seconds in (3600.0, 0.1, 3600.0):
        home.nursery.end(run, grace_seconds)
    home.finish(run)
    home.turn_until(lambda: run.exit is not None, "its exit")  # it may outlive the kill limit
    assert run.exit is not None
    assert run.exit.signal == signal.SIGKILL


# ---- mishaps


def test_a_mishap_with_one_ending_leaves_the_others_theirs(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NURSERY-3."""
    runs = [home.start("sleep", "600", name=f"t{number}") for number in range(3)]
    home.turn_until(lambda: all(run.runs for run in runs), "the starts")
    for run in runs:
        home.nursery.end(run, 0.0)
    cursed = runs[0].ending
    assert cursed is not None

    def fail(now: float) -> bool:
        raise RuntimeError("a bug of one ending")

    with monkeypatch.context() as bug:
        bug.setattr(cursed, "step", fail)
        home.finish(*runs[1:])
        assert not runs[0].over
        assert any("a bug of one ending" in note for note in home.notes)
    home.finish(runs[0])


def test_an_end_that_the_owner_failed_to_take_is_told_again(home: Home) -> None:
    """NURSERY-2."""
    home.deaf = 2
    home.start("true")
    home.turn_until(lambda: "task ended" in home.events, "the end to be taken")
    assert home.events == ["task running", "task exited", "task ended"]
    assert not home.nursery.busy


def test_only_an_orphan_that_ended_has_its_reaper_look_again_at_once(home: Home) -> None:
    """A program that was started here wakes the loop at its end; a second orphan would not (WATCH-3)."""
    reaped: list[bool] = []
    collect = home.nursery.collect
    home.nursery.collect = lambda: reaped.append(collect()) or reaped[-1]  # type: ignore[method-assign]  # a spy
    run, watcher = home.start("/bin/true"), home.nursery._watcher
    reap = watcher.collect
    # Without the orphans that earlier tests left.
    watcher.collect = lambda: [one for one in reap() if one.pid == run.pid]  # type: ignore[method-assign]  # a filter
    home.finish(run)
    assert not any(reaped)
    watcher.collect = reap  # type: ignore[method-assign]  # as it was
    run = home.start("/bin/sh", "-c", "(setsid sh -c 'echo begun > begun; sleep 0.2' &) ; exit 0")
    home.read_line("begun")
    home.finish(run)
    assert any(reaped)
