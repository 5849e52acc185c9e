"""The debug gather over real collectives: stacks and torch's own flight record of ranks that wait
for one that never comes.

`make ddp` brings torch and runs this. On a GPU NCCL's watchdog writes the record when the report
asks for it, or when a collective hangs; on the CPU `answer_flight_requests` does, on the same pipe
and to the same file: the recorder and its format are torch's own.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.supervisor import Context, gather_debug, make_flight_environment
from tests.system.supervisor.night.night import ROOT
from tests.system.supervisor.rig import Managers, attach
from tests.waits import free_port

TORCH = os.environ.get("HOLDFAST_TEST_TORCH", "")
PATIENCE = 90.0
WORKER = """
import os, sys, time
import torch, torch.distributed as dist
from holdfast.supervisor import answer_flight_requests, get_message_queue
rank, odd = int(os.environ["RANK"]), sys.argv[1]
dist.init_process_group("gloo")
assert answer_flight_requests()
pair = dist.new_group([0, 1])
def read_a_slow_disk(): time.sleep(6000)
def reduce_gradients(size): dist.all_reduce(torch.ones(size))
reduce_gradients(3)
dist.barrier()
get_message_queue().send("here")
if odd == "absent" and rank == 2: read_a_slow_disk()
if odd == "other call" and rank == 2: dist.broadcast(torch.ones(3), 0)
if odd == "behind" and rank == 0: read_a_slow_disk()
if odd == "behind" and rank == 1: dist.all_reduce(torch.ones(1), group=pair)
reduce_gradients(3)
time.sleep(6000)
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not TORCH,
        reason="HOLDFAST_TEST_TORCH names no python that has torch; `make ddp` brings one",
    ),
]


def ask(ctx: Context, managers: Managers, folder: Path, odd: str) -> tuple[str, str]:
    """The report on three ranks, one of which does something else."""
    hosts, _ = attach(ctx, managers, 3)
    env = make_flight_environment(f"{folder}/flight-") | {
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()), "PYTHONPATH": str(ROOT / "src"),
    }  # fmt: skip
    group = ctx.create_process_group(hosts, [TORCH, "-c", WORKER, odd], env=env)
    group.gather().result(PATIENCE)
    time.sleep(1.0)  # for the others to enter what they will never leave
    return gather_debug(ctx, group, folder / "report.txt", width=1)


def test_the_rank_that_never_came_is_named(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    sentence, words = ask(ctx, managers, tmp_path, "absent")
    assert sentence == (
        "rank 2 never entered all_reduce 3 of default_pg, in which 2 ranks (0-1) wait; "
        "rank 2 is in read_a_slow_disk (<string>:9)"
    ), words
    assert "flight records of 3 ranks (0-2):" in words
    assert "default_pg: last 2 of rank 2, 3 of 2 ranks (0-1)" in words, words


def test_a_rank_that_entered_something_else_is_named(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    sentence, words = ask(ctx, managers, tmp_path, "other call")
    assert sentence.startswith(
        "ranks disagree about number 3 of default_pg: rank 2 entered broadcast, "
        "2 ranks (0-1) entered all_reduce of 3; rank 2 is in "
    ), words


def test_the_one_for_which_the_late_one_waits_is_named(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    """Rank 1 is late in the world's group, because it waits for rank 0 in another."""
    sentence, words = ask(ctx, managers, tmp_path, "behind")
    assert "rank 0" in sentence.partition("never entered")[0], words
    assert "rank 0 is in read_a_slow_disk" in sentence, words
