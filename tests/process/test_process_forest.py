"""TREE-4 against a made-up kernel: processes fork, exec, exit and are orphaned between any two reads of a scan.

The windows are those of Linux: who exits has no environment and (v1) shows the root as its group, but is no zombie yet and keeps
its children; who execs has no environment for a moment; only a zombie's children are the sub-reaper's.
"""

from __future__ import annotations

import itertools
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.process.groups import TaskGroup
from holdfast.process.spawn import Child
from holdfast.process.table import HOST_VARIABLE, TASK_VARIABLE, ProcessEntry
from holdfast.process.tree import Ending, Forest, Mark, Signaller, Tree

HOST = "made-up"
FAMILY = "job:0:1"
REAPER = 100
RUNNING, EXECING, EXITING, OUT_OF_GROUP, ZOMBIE = "running", "execing", "exiting", "out of group", "zombie"
UNTIL_ENDED = 5_000
many = settings(max_examples=200)


class Process:
    def __init__(self, pid: int, ppid: int, session: int, start: int, task: str) -> None:
        self.pid, self.ppid, self.session, self.start, self.task = pid, ppid, session, start, task
        self.state = RUNNING

    @property
    def runs(self) -> bool:
        return self.state in (RUNNING, EXECING)


class Kernel:
    """The process table, which moves on by itself whenever it is read. `moves` is how often it still may."""

    def __init__(self, random: Random, *, grouped: bool, moves: int) -> None:
        self.random = random
        self.grouped = grouped
        self.moves = moves
        self.now = 1_000
        self.numbers = itertools.count(1_000)
        self.processes: dict[int, Process] = {}
        self.put(1, 0, task="")
        self.put(REAPER, 1, task="")
        self.stranger = self.put(50, 1, task="")

    def put(self, pid: int, ppid: int, *, task: str, session: int | None = None) -> Process:
        process = Process(pid, ppid, session or pid, self.now, task)
        self.processes[pid] = process
        return process

    def of(self, task: str, *states: str) -> list[int]:
        return [p.pid for p in self.processes.values() if p.task == task and p.state in states]

    def advance(self) -> None:
        """Let some things happen, most of them in the family that is hunted."""
        for _ in range(min(self.random.randrange(6), self.moves)):
            self.moves -= 1
            self.now += 1
            family = [p for p in self.processes.values() if p.task == FAMILY and p.state != ZOMBIE]
            others = [p for p in self.processes.values() if p.task != FAMILY and p.state != ZOMBIE]
            hunted = family and self.random.random() < 0.8
            self.move(self.random.choice(family if hunted else others))

    def move(self, process: Process) -> None:
        if process.state == EXECING:
            process.state = RUNNING
        elif process.state == EXITING:
            process.state = OUT_OF_GROUP
        elif process.state == OUT_OF_GROUP:
            self.bury(process)
        elif process.pid in (1, REAPER):
            pass
        elif self.random.random() < 0.1:
            process.state = EXECING
        elif self.random.random() < 0.1 or len(self.of(process.task, RUNNING, EXECING)) < 2:
            self.fork(process)  # small families are the hardest to catch
        elif process is not self.stranger:
            process.state = EXITING

    def fork(self, parent: Process) -> None:
        pid = next(self.numbers)
        # The task's own leave every session; half of the bystander's stay, so that both kinds of evidence are met.
        stays = parent.task != FAMILY and self.random.random() < 0.5
        self.put(pid, parent.pid, task=parent.task, session=parent.session if stays else None)

    def bury(self, process: Process) -> None:
        process.state = ZOMBIE
        for child in self.processes.values():
            if child.ppid == process.pid:
                child.ppid = REAPER if process.task else 1
        if not process.task:
            del self.processes[process.pid]  # somebody reaps it

    # ---- what /proc shows

    def read_entry(self, pid: int) -> ProcessEntry | None:
        self.advance()
        process = self.processes.get(pid)
        if process is None:
            return None
        entry = ProcessEntry(pid, process.ppid, process.session, process.start, process.state != ZOMBIE)
        entry.exiting = process.state in (EXITING, OUT_OF_GROUP, ZOMBIE)
        return entry

    def read_table(self) -> dict[int, ProcessEntry]:
        entries = [self.read_entry(pid) for pid in list(self.processes)]
        return {entry.pid: entry for entry in entries if entry is not None}

    def read_children(self, pid: int) -> list[int] | None:
        self.advance()
        return [p.pid for p in self.processes.values() if p.ppid == pid]

    def read_group(self, pid: int, folder: str) -> str | None:
        self.advance()
        process = self.processes.get(pid)
        return process.task if self.grouped and process is not None and process.runs and process.task else None

    def read_environ(self, pid: int) -> bytes | None:
        self.advance()
        process = self.processes.get(pid)
        if process is None or process.state != RUNNING:
            return b""
        marks = f"{TASK_VARIABLE}={process.task}\0{HOST_VARIABLE}={HOST}\0" if process.task else ""
        return f"PATH=/bin\0{marks}".encode()


class Group(TaskGroup):
    """A task's group in the made-up kernel, of the v1 kind."""

    __slots__ = ("kernel",)

    def __init__(self, kernel: Kernel, task: str) -> None:
        super().__init__(f"/made-up/{task}", unified=False)
        self.kernel = kernel

    def read_pids(self) -> list[int]:
        self.kernel.advance()
        return self.kernel.of(self.name, RUNNING, EXECING, EXITING)

    def kill(self) -> bool:
        return False


class Killer(Signaller):
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel

    def send(self, entry: ProcessEntry, number: int) -> bool:
        self.kernel.advance()
        process = self.kernel.processes[entry.pid]
        if process.runs:
            process.state = EXITING
        return True


def make_forest(kernel: Kernel) -> tuple[Forest, Tree]:
    """A guardian's view: its agent, a bystander's task, and the task under test, whose family ran away from its parent."""
    forest = Forest(HOST, proc=kernel, reaper=REAPER)
    trees = {}
    for pid, task in ((200, "agent:0:0"), (300, "other:0:1"), (400, FAMILY)):
        trees[task] = Tree(
            Mark(task, HOST), Child(pid, -1, -1, kernel.now / 100), Group(kernel, task) if kernel.grouped else None
        )
        kernel.put(pid, REAPER, task=task)
        forest.add(trees[task])
        kernel.now += 1
    kernel.put(401, REAPER, task=FAMILY)
    first = kernel.processes[400]
    kernel.bury(first)
    del kernel.processes[400]
    forest.note_exit(400)
    return forest, trees[FAMILY]


def left(kernel: Kernel) -> list[int]:
    """What must not be there when a tree is said to be gone."""
    states = (RUNNING, EXECING, EXITING) if kernel.grouped else (RUNNING, EXECING, EXITING, OUT_OF_GROUP)
    return kernel.of(FAMILY, *states)


@pytest.mark.parametrize("grouped", [True, False])
@many
@given(random=st.randoms(use_true_random=False), moves=st.integers(0, 400))
def test_a_tree_is_never_said_to_be_gone_while_one_of_it_lives(grouped: bool, random: Random, moves: int) -> None:
    kernel = Kernel(random, grouped=grouped, moves=moves)
    forest, tree = make_forest(kernel)
    for _ in range(8):
        if forest.find_living(tree).gone:
            assert left(kernel) == []
        if forest.is_surely_empty(tree):
            assert left(kernel) == []


@pytest.mark.parametrize("grouped", [True, False])
@many
@given(random=st.randoms(use_true_random=False), moves=st.integers(0, 400))
def test_a_kill_ends_the_whole_family_however_it_forks(grouped: bool, random: Random, moves: int) -> None:
    kernel = Kernel(random, grouped=grouped, moves=moves)
    forest, tree = make_forest(kernel)
    ending = Ending(
        tree, forest, now=0.0, grace_seconds=0.0, kill_limit_seconds=UNTIL_ENDED * 2, signaller=Killer(kernel)
    )
    ending.first_exited = True
    for turn in range(UNTIL_ENDED):
        if ending.step(float(turn)):
            break
        if not kernel.moves:  # the family rests; what dies still gets there
            for process in list(kernel.processes.values()):
                if process.state in (EXITING, OUT_OF_GROUP):
                    kernel.bury(process)
                elif process.state == EXECING:
                    process.state = RUNNING
    else:
        pytest.fail("the ending never came to an end")
    assert (ending.survivors, left(kernel)) == ([], [])


def test_a_member_that_forks_and_dies_between_two_reads_of_one_look_leaves_no_gap() -> None:
    """Its parent, exiting, still holds it: so it is in the group, is no child of the reaper, and is dead when it is read."""

    class Late(Kernel):
        def read_children(self, pid: int) -> list[int] | None:
            children = super().read_children(pid)
            if 402 in self.processes and self.processes[402].state == RUNNING:
                self.fork(self.processes[402])
                self.bury(self.processes[402])
            return children

    class LateGroup(Group):
        __slots__ = ()

        def read_pids(self) -> list[int]:
            if 402 not in self.kernel.processes:
                self.kernel.put(402, 401, task=FAMILY)
            return super().read_pids()

    kernel = Late(Random(0), grouped=True, moves=0)
    forest, tree = make_forest(kernel)
    kernel.processes[401].state = OUT_OF_GROUP
    tree.group = LateGroup(kernel, FAMILY)
    found = forest.find_living(tree)
    assert [entry.pid for entry in found.members] == left(kernel)
    assert left(kernel) != []


def test_one_that_may_not_be_told_apart_is_named_at_the_limit() -> None:
    """An orphan that exits for ever and could be anybody's: the tree is given up, not said to be gone."""
    kernel = Kernel(Random(0), grouped=False, moves=0)
    forest, tree = make_forest(kernel)
    kernel.processes[401].state = EXITING
    ending = Ending(tree, forest, now=0.0, grace_seconds=0.0, kill_limit_seconds=5.0, signaller=Killer(kernel))
    ending.first_exited = True
    assert not ending.step(0.0)
    assert not ending.step(4.9)
    assert ending.step(5.0)
    assert ending.survivors == [401]
