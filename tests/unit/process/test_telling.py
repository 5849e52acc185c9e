"""Which processes of a tree are told to stop, and when: the table, and what /proc says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product

import pytest

from holdfast.process.table import read_signals
from holdfast.process.telling import (
    TERM,
    SignalMasks,
    Tell,
    TermAnswer,
    TreeMember,
    choose_told,
    is_settled,
    judge_answer,
    may_tell_last,
)
from tests.waits import wait_until

BIT = 1 << (TERM - 1)
MAIN, CHILD, BELOW, SAVER = (1, 0), (2, 0), (3, 0), (4, 0)


def make(answer: TermAnswer, *, main_lives: bool = True) -> dict[tuple[int, int], TreeMember]:
    """A main program with a child, which has one below it; and a saver that began after the
    stop, at 100."""
    tree = {
        MAIN: TreeMember(began=1.0, answer=answer),
        CHILD: TreeMember(parent=MAIN, began=2.0, answer=TermAnswer.HANDLES),
        BELOW: TreeMember(parent=CHILD, began=3.0),
        SAVER: TreeMember(parent=MAIN, began=100.0),
    }
    return tree if main_lives else {key: one for key, one in tree.items() if key != MAIN}


@pytest.mark.parametrize(
    ("answer", "main_lives", "half_over", "chosen"),
    [
        (TermAnswer.DIES, True, False, set()),
        (TermAnswer.DIES, False, False, {CHILD}),  # not the one below: its parent may save
        (TermAnswer.HANDLES, True, False, set()),
        (TermAnswer.HANDLES, True, True, {CHILD, BELOW}),
        (TermAnswer.HANDLES, False, False, {CHILD}),
        (TermAnswer.IGNORES, True, False, {CHILD}),
        (TermAnswer.WAITS, True, False, {CHILD}),
        (TermAnswer.WAITS, True, True, {CHILD, BELOW}),
    ],
)
def test_the_table(
    answer: TermAnswer, main_lives: bool, half_over: bool, chosen: set[tuple[int, int]]
) -> None:
    tree = make(answer, main_lives=main_lives)
    assert choose_told(tree, {MAIN: 100.0}, "main", half_over=half_over) == chosen


def test_each_is_told_once_and_those_below_follow_it() -> None:
    tree, told = make(TermAnswer.DIES, main_lives=False), {MAIN: 100.0, CHILD: 101.0}
    assert choose_told(tree, told, "main", half_over=False) == set()
    assert not is_settled(tree, told)
    del tree[CHILD]
    assert choose_told(tree, told, "main", half_over=False) == {BELOW}
    assert is_settled(tree, {**told, BELOW: 102.0}), "the saver is told never"


def test_one_that_began_with_the_stop_in_mind_is_not_told_nor_what_it_starts() -> None:
    """TELL-3."""
    tree = make(TermAnswer.WAITS)
    tree[(5, 0)] = TreeMember(parent=SAVER, began=101.0)
    for answer, half_over in product(TermAnswer, (False, True)):
        tree[MAIN] = TreeMember(began=1.0, answer=answer)
        chosen = choose_told(tree, {MAIN: 100.0}, "main", half_over=half_over)
        assert not chosen & {SAVER, (5, 0)}


@pytest.mark.parametrize("answer", list(TermAnswer))
def test_a_job_may_have_its_whole_tree_told_at_once(answer: TermAnswer) -> None:
    tell: Tell = "tree"
    assert choose_told(make(answer), {MAIN: 100.0}, tell, half_over=False) == {CHILD, BELOW, SAVER}


@pytest.mark.parametrize(
    ("signals", "name", "old", "young", "answer"),
    [
        (SignalMasks(), "python", True, False, TermAnswer.DIES),
        (SignalMasks(caught=BIT), "python", True, False, TermAnswer.HANDLES),
        (SignalMasks(ignored=BIT), "python", True, False, TermAnswer.IGNORES),
        (SignalMasks(init=True), "python", True, False, TermAnswer.IGNORES),
        (SignalMasks(init=True, caught=BIT), "python", True, False, TermAnswer.HANDLES),
        (SignalMasks(blocked=BIT), "tini", True, False, TermAnswer.HANDLES),
        (SignalMasks(blocked=BIT, pending=BIT), "deaf", True, False, TermAnswer.IGNORES),
        (SignalMasks(caught=BIT, sleeps=True), "bash", True, False, TermAnswer.WAITS),
        (SignalMasks(caught=BIT, sleeps=True), "bash", True, True, TermAnswer.HANDLES),
        (SignalMasks(caught=BIT), "bash", True, False, TermAnswer.HANDLES),
        (SignalMasks(caught=BIT, sleeps=True), "bash", False, False, TermAnswer.HANDLES),
        (SignalMasks(caught=BIT, sleeps=True), "python", True, False, TermAnswer.HANDLES),
        (SignalMasks(sleeps=True), "sh", True, False, TermAnswer.DIES),
    ],
)
def test_what_a_process_does_with_its_term(
    signals: SignalMasks, name: str, old: bool, young: bool, answer: TermAnswer
) -> None:
    assert judge_answer(signals, name, old_child=old, young_child=young) is answer


def test_a_container_s_main_program_that_dies_of_it_is_told_last() -> None:
    """TELL-4."""
    assert not may_tell_last([1], TermAnswer.DIES)
    assert may_tell_last([], TermAnswer.DIES)
    assert may_tell_last([1], TermAnswer.HANDLES)


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    code = "import os, signal; signal.signal(15, signal.SIG_IGN); signal.signal(10, print); signal.pthread_sigmask(0, {12}); print(1, flush=True); os.read(0, 1)"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield process
    process.communicate()


def test_the_signals_of_a_process_as_the_kernel_tells_them(child: subprocess.Popen[str]) -> None:
    assert child.stdout is not None
    child.stdout.readline()
    os.kill(child.pid, signal.SIGUSR2)
    wait_until(lambda: read_signals(child.pid).sleeps)
    found = read_signals(child.pid)
    assert found.ignored & BIT
    assert found.caught & 1 << (signal.SIGUSR1 - 1)
    assert found.blocked & found.pending & 1 << (signal.SIGUSR2 - 1)
    assert not found.catches_term
    assert not found.init
    assert read_signals(0) == SignalMasks()
