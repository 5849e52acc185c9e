"""Which processes of a container are told to stop, and in which order, shown on plain processes
that stand for a container's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.agent.containers.inside import Inside, find_members
from holdfast.agent.containers.plan import name_container
from holdfast.core.ids import TaskKey
from holdfast.process.endings.pipelines import catches_term
from holdfast.process.endings.teller import read_ticks
from holdfast.process.table import ProcessEntry, read_entry
from tests.waits import is_alive, wait_exit, wait_until

KEY = TaskKey("job", 0, 1)
# A first process that does nothing, with a main program that has a child. What handles TERM takes a
# second of its own over it.
FAMILY = """
import os, signal, sys, time
def slowly(*_):
    os.write(1, b"term %d\\n" % os.getpid())
    sys.stdin.read(1)
    os._exit(0)
def wait(handles):
    signal.signal(signal.SIGTERM, slowly if handles else signal.SIG_DFL)
    os.write(1, b"up %d\\n" % os.getpid())
    while True:
        time.sleep(1000)
if os.fork() == 0:
    if os.fork() == 0:
        wait("child" in sys.argv)
    wait("main" in sys.argv)
wait(False)
"""


def find_parent(pid: int) -> int:
    found = read_entry(pid)
    return found.ppid if found is not None else 0


class Family:
    """The three processes; main and child are found by their words."""

    def __init__(self, marks: dict[str, str], *handle: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-S", "-c", FAMILY, *handle],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **marks},
        )
        self.first = self.process.pid
        pids = [self.read("up") for _ in range(3)]
        (self.main,) = [pid for pid in pids if find_parent(pid) == self.first]
        (self.child,) = [pid for pid in pids if find_parent(pid) == self.main]

    def read(self, word: str) -> int:
        """The pid that says this word next."""
        assert self.process.stdout is not None
        said, pid = self.process.stdout.readline().split()
        assert said == word
        return int(pid)

    def let_go(self) -> None:
        """The process that handles TERM has finished."""
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def make_family() -> Iterator[Callable[..., Family]]:
    made: list[Family] = []

    def make(marks: dict[str, str] | None = None, *handle: str) -> Family:
        given = {"HOLDFAST_TASK": str(KEY), "HOLDFAST_HOST": "abcd"} if marks is None else marks
        made.append(Family(given, *handle))
        return made[-1]

    yield make
    for family in made:
        for pid in (family.child, family.main, family.first):
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        wait_exit(family.process, 10)
        assert family.process.stdout is not None
        family.process.stdout.close()


def inside(family: Family, grace_seconds: float = 1e6) -> Inside:
    child = read_entry(family.child)
    # A process that began in the tick of its stop counts as begun after it (TELL-3).
    wait_until(lambda: child is None or read_ticks() > child.start_ticks)
    name = name_container("abcd", KEY)
    return Inside(name, family.first, with_init=True, grace_seconds=grace_seconds)


def test_a_main_program_that_would_die_of_it_waits_for_one_that_saves(
    make_family: Callable[..., Family],
) -> None:
    """TELL-1."""
    family = make_family(None, "child")
    box = inside(family)
    assert not box.may_tell_main()
    assert family.read("term") == family.child
    assert not box.may_tell_main()
    family.let_go()
    wait_until(box.may_tell_main)
    assert is_alive(family.main), "it is the runtime that tells it"


def test_what_is_below_a_main_program_that_handles_it_is_told_at_half_of_the_grace(
    make_family: Callable[..., Family],
) -> None:
    """TELL-1: the child's death would break the main program's save."""
    family = make_family(None, "main", "child")
    box = inside(family, grace_seconds=0.6)
    began = time.monotonic()  # before the first look, from which the grace counts
    assert box.may_tell_main()
    os.kill(family.main, signal.SIGTERM)
    assert family.read("term") == family.main
    while not box.settled:
        box.tell_others()
    assert time.monotonic() - began >= 0.3
    assert family.read("term") == family.child
    assert catches_term(family.main)
    assert not catches_term(family.first)


def test_a_job_may_have_all_of_its_container_told_at_once(
    make_family: Callable[..., Family],
) -> None:
    family = make_family(None, "main", "child")
    box = Inside(name_container("abcd", KEY), family.first, with_init=True, grace_seconds=1e6, tell="tree")  # fmt: skip
    assert box.may_tell_main()
    box.tell_others()
    assert family.read("term") == family.child
    assert box.settled, "and no process is told twice"


def test_who_handles_nothing_holds_nobody_up(make_family: Callable[..., Family]) -> None:
    family = make_family(None)
    assert inside(family).may_tell_main()


@pytest.mark.parametrize(
    "marks", [{"HOLDFAST_TASK": "job:0:2", "HOLDFAST_HOST": "abcd"}, {"HOLDFAST_TASK": "odd", "HOLDFAST_HOST": "abcd"}, {}]
)  # fmt: skip
def test_processes_of_somebody_else_are_never_signalled(
    make_family: Callable[..., Family], marks: dict[str, str]
) -> None:
    """TELL-2. An engine in another namespace of pids names one that is not ours here."""
    family = make_family(marks, "child")
    assert inside(family).may_tell_main()
    assert is_alive(family.child)
    assert is_alive(family.main)


def entry(pid: int, parent: int, start: int) -> ProcessEntry:
    return ProcessEntry(pid, parent, 1, start, True)


def test_the_main_program_is_the_init_s_oldest_child() -> None:
    """Pids wrap; an orphan that the init took in may have a lower one."""
    table = {
        e.pid: e
        for e in (
            entry(90, 1, 5),
            entry(95, 90, 6),
            entry(3, 90, 8),
            entry(7, 95, 9),
            entry(60, 1, 1),
        )
    }
    members, main = find_members(table, 90, with_init=True)
    assert main == 95
    assert sorted(e.pid for e in members) == [3, 7, 95]
    members, main = find_members(table, 90, with_init=False)
    assert main == 90
    assert sorted(e.pid for e in members) == [3, 7, 90, 95]
    assert find_members({}, 90, with_init=True) == ([], 0)
