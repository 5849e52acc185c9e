"""One report of where every rank of a running group is."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.supervisor.policies.rig import POLICIES, STEP_PATIENCE
from tests.waits import wait_until

sys.path.insert(0, str(POLICIES))
import debug_gather

from holdfast.supervisor import Context
from tests.system.supervisor.rig import Managers, attach

# Ranks 0, 1 and 3 wait for rank 2, which is elsewhere. Rank 1 has a dump of the flight recorder.
WORKER = """
import os, sys, time
from holdfast.supervisor import get_message_queue
rank = int(os.environ["RANK"])
def wait_for_the_others(): time.sleep(6000)
def read_a_slow_disk(): time.sleep(6000)
if rank == 1: open(f"{sys.argv[1]}/flight{rank}", "w").close()
get_message_queue().send("here")
read_a_slow_disk() if rank == 2 else wait_for_the_others()
"""


@pytest.mark.slow
def test_the_odd_rank_comes_first_and_equal_stacks_once(
    ctx: Context, managers: Managers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        debug_gather, "WIDTH", 1
    )  # a chain: each collector but the last has a child
    hosts, _ = attach(ctx, managers, 3)
    env = {"TORCH_NCCL_DEBUG_INFO_TEMP_FILE": f"{tmp_path}/flight"}
    group = ctx.create_process_group(
        hosts, [sys.executable, "-c", WORKER, str(tmp_path)], processes_per_host=2, env=env
    )
    group.gather().result(STEP_PATIENCE)
    group[5].end(0)
    group[5].returncode().result(STEP_PATIENCE)
    words = debug_gather.gather_debug(ctx, group, tmp_path / "report.txt")
    assert (tmp_path / "report.txt").read_text() == words
    parts = words.strip().split("\n\n1 rank")
    assert "4 ranks (0-1, 3-4):" in words, words
    assert words.count("wait_for_the_others (") == 1, words
    odd = next(part for part in parts if "read_a_slow_disk (" in part)
    assert "(2):" in odd, words
    assert words.index("read_a_slow_disk (") < words.index("wait_for_the_others ("), words
    assert (
        f"(1):\nleft a dump of NCCL's flight recorder on its host, {tmp_path}/flight<rank>" in words
    ), words
    assert "1 rank (5): nothing was heard of them" in words, words
    assert not group[0].returncode().done(), "looking ends nothing"


@pytest.mark.slow
def test_a_host_that_is_frozen_is_named_and_not_waited_for(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    hosts, started = attach(ctx, managers, 2)
    group = ctx.create_process_group(
        hosts, [sys.executable, "-c", WORKER, str(tmp_path)], processes_per_host=2
    )
    group.gather().result(STEP_PATIENCE)
    started[1].send_signal(signal.SIGSTOP)
    words = debug_gather.gather_debug(ctx, group)
    assert "2 ranks (0-1):" in words, words
    assert "2 ranks (2-3): nothing was heard of them" in words, words


@pytest.mark.slow
def test_without_py_spy_it_asks_gdb_and_says_when_nobody_could_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(debug_gather, "find_py_spy", lambda: "/nowhere/py-spy")
    monkeypatch.setattr(debug_gather, "TOOL_SECONDS", STEP_PATIENCE)
    with subprocess.Popen(["sleep", "6000"]) as sleeper:
        try:
            if shutil.which("gdb"):
                stacks = debug_gather.look_at_rank(0, sleeper.pid)[0]
                assert "sleep" in stacks
                assert stacks.startswith("Thread "), "gdb's words about itself differ between hosts"
                assert "Inferior" not in stacks
        finally:
            sleeper.kill()
    assert debug_gather.look_at_rank(0, sleeper.pid)[0].startswith("no stacks:")


@pytest.mark.slow
def test_a_stopped_rank_is_said_to_be_and_where(tmp_path: Path) -> None:
    words = "import time\ndef stand_here(): print(flush=True); time.sleep(6000)\nstand_here()"
    with subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            rank.stdout.readline()
            assert len(debug_gather.look_at_rank(0, rank.pid)) == 1
            rank.send_signal(signal.SIGSTOP)
            wait_until(lambda: debug_gather.read_state(rank.pid) == "T", STEP_PATIENCE)
            stacks, state = debug_gather.look_at_rank(0, rank.pid)
            assert "stand_here (" in stacks
            assert state == debug_gather.STATES["T"]
        finally:
            rank.kill()
    assert debug_gather.read_state(rank.pid) == ""


def test_ranks_are_named_in_spans() -> None:
    assert debug_gather.name_ranks([4]) == "1 rank (4)"
    assert debug_gather.name_ranks([0, 1, 2, 5, 7, 8]) == "6 ranks (0-2, 5, 7-8)"
