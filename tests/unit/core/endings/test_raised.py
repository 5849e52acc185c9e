"""raised: which of a log's exceptions ended the program."""

from __future__ import annotations

import pytest

from holdfast.core.endings.classify import classify
from holdfast.core.endings.raised import find_exception, list_raised
from holdfast.core.facts import TaskFacts

TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
TYPO = f"{TRACE}NameError: name 'x' is not defined\n"
ROWS = f"{TRACE}ValueError: no rows\n"
LAUNCHER = f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def of_rank(text: str, rank: int) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (ROWS, "ValueError: no rows"),
        (ROWS + TYPO, "NameError: name 'x' is not defined"),
        (f"{ROWS}Exception ignored in: <function A.__del__>\n{TYPO}", "ValueError: no rows"),
        (f"{ROWS}Exception in thread Thread-1:\n{TYPO}", "ValueError: no rows"),
        (f"2026-11-26 WARNING the plugin is left out\n{TYPO}{ROWS}", "ValueError: no rows"),
        (f"ERROR:root:left out\n{TYPO}", None),
        (of_rank(TYPO, 3) + LAUNCHER, "NameError: name 'x' is not defined"),
        (LAUNCHER, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        (
            "╭──── Traceback (most recent call last) ────╮\n│ t.py:1  │\n╰───────╯\nKeyError: 'a'\n",
            "KeyError: 'a'",
        ),
        ("", None),
    ],
)
def test_the_exception_that_ended_a_program(log: str, line: str | None) -> None:
    assert find_exception(log) == line


def test_a_message_of_several_lines_is_kept_whole() -> None:
    text = f"{TRACE}RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch\n\nbye\n"
    assert list_raised(text)[0].block.endswith("Net:\n\tsize mismatch")


PEER = (
    f"{TRACE}torch.distributed.DistBackendError: NCCL error in: x.cpp:1\n"
    "ncclRemoteError: A call failed possibly due to a network error\n"
)


@pytest.mark.parametrize("order", [(TYPO, PEER), (PEER, TYPO)])
def test_a_rank_in_the_same_log_began_the_fall_that_its_neighbours_tell_of(
    order: tuple[str, str],
) -> None:
    log = "".join(of_rank(text, rank) for rank, text in enumerate(order)) + LAUNCHER
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule == "log-name"


def test_a_rank_that_caught_an_exception_and_lost_a_peer_is_a_victim() -> None:
    log = of_rank(ROWS, 0) + "step 3\n" + of_rank(PEER, 0)
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule == "log-nccl-peer"


def test_a_plain_exception_of_a_neighbour_stands_before_a_peers_death() -> None:
    log = of_rank(ROWS, 1) + of_rank(PEER, 0) + LAUNCHER
    found = classify(TaskFacts(exit_code=1, log_tail=log))
    assert (found.rule, found.message) == ("rank-raised", "ValueError: no rows (exit code 1)")


def test_a_program_that_lost_a_peer_and_then_raised_is_a_victim() -> None:
    lost = "[W1] [c10d] recvValue failed on SocketImpl(fd=4, remote=[n1]:29500): Connection reset by peer\n"
    assert classify(TaskFacts(exit_code=1, log_tail=lost + ROWS)).rule == "log-store-peer"
