"""One report of where every rank of a running group is."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.supervisor import Context, gather_debug
from holdfast.supervisor.gather import stacks
from holdfast.supervisor.gather.ranks import NO_STACKS, describe_rank
from holdfast.supervisor.gather.spans import make_spans, name_ranks
from holdfast.supervisor.gather.stacks import STATES, find_place, find_stacks, read_state
from tests.system.supervisor.policies.rig import STEP_PATIENCE
from tests.system.supervisor.rig import Managers, attach
from tests.waits import wait_until

# All but rank 2, which is elsewhere, wait for it.
WORKER = """
import os, sys, time
from holdfast.supervisor import get_message_queue
rank = int(os.environ["RANK"])
def wait_for_the_others(): time.sleep(6000)
def read_a_slow_disk(): time.sleep(6000)
get_message_queue().send("here")
read_a_slow_disk() if rank == 2 else wait_for_the_others()
"""


@pytest.mark.slow
def test_the_odd_rank_comes_first_and_equal_stacks_once(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    hosts, _ = attach(ctx, managers, 3)
    group = ctx.create_process_group(hosts, [sys.executable, "-c", WORKER], processes_per_host=2)
    group.gather().result(STEP_PATIENCE)
    group[5].end(0)
    group[5].returncode().result(STEP_PATIENCE)
    # A chain: each node but the last has a child.
    sentence, words = gather_debug(ctx, group, tmp_path / "report.txt", width=1)
    assert (tmp_path / "report.txt").read_text() == words
    assert sentence == (
        "rank 2 is in read_a_slow_disk (<string>:6); "
        "4 ranks (0-1, 3-4) are in wait_for_the_others (<string>:5)"
    )
    first, odd, others, *_ = words.strip().split("\n\n")
    assert first == sentence
    assert odd.startswith("rank 2:"), words
    assert "read_a_slow_disk (" in odd
    assert others.startswith("4 ranks (0-1, 3-4):"), words
    assert words.count("    wait_for_the_others (") == 1, words
    assert "rank 5: ended with -9" in words, words
    assert not group[0].returncode().done(), "looking ends nothing"


@pytest.mark.slow
def test_a_host_that_is_frozen_is_named_and_not_waited_for(
    ctx: Context, managers: Managers
) -> None:
    hosts, started = attach(ctx, managers, 2)
    group = ctx.create_process_group(hosts, [sys.executable, "-c", WORKER], processes_per_host=2)
    group.gather().result(STEP_PATIENCE)
    started[1].send_signal(signal.SIGSTOP)
    words = str(gather_debug(ctx, group))
    assert "2 ranks (0-1):" in words, words
    assert "2 ranks (2-3): nothing was heard of there" in words, words
    assert "m1: host m1 is lost: nothing was heard of it" in words, words


SLEEPER = "import time\ndef stand_here(): print(flush=True); time.sleep(6000)\nstand_here()"


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("gdb"), reason="gdb is not installed here")
def test_without_py_spy_it_asks_gdb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "find_py_spy", lambda: "/nowhere/py-spy")
    monkeypatch.setattr(stacks, "TOOL_SECONDS", STEP_PATIENCE)
    found = []
    for _ in range(2):
        with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as rank:
            try:
                assert rank.stdout is not None
                rank.stdout.readline()
                found.append(find_stacks(rank.pid, "S"))
            finally:
                rank.kill()
    one, other = found
    assert one is not None
    assert one.startswith("Thread "), "gdb's words about itself differ between hosts"
    assert "Inferior" not in one
    assert one == other, "two processes in one place are described alike"
    place = find_place(one)
    assert place is not None
    assert "sleep" in place, place


@pytest.mark.slow
def test_a_rank_at_which_no_tool_can_look_is_said_to_be_one() -> None:
    with subprocess.Popen(["true"]) as over:
        pass
    assert describe_rank(over.pid) == ([NO_STACKS], None)


@pytest.mark.slow
def test_a_stopped_rank_is_said_to_be_and_where() -> None:
    with subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            rank.stdout.readline()
            texts, place = describe_rank(rank.pid)
            assert len(texts) == 1
            assert place == "stand_here (<string>:2)"
            rank.send_signal(signal.SIGSTOP)
            wait_until(lambda: read_state(rank.pid) == "T", STEP_PATIENCE)
            (words, state), place = describe_rank(rank.pid)
            assert "stand_here (" in words
            assert place == "stand_here (<string>:2)"
            assert state == STATES["T"]
        finally:
            rank.kill()
    assert read_state(rank.pid) == ""


def test_ranks_are_named_in_spans() -> None:
    assert name_ranks(make_spans([4])) == "rank 4"
    assert name_ranks(make_spans([0, 1, 2, 5, 7, 8])) == "6 ranks (0-2, 5, 7-8)"
