"""The debug gather over real collectives: stacks and torch's own flight record of ranks that wait
for one that never comes.

`make ddp` brings torch and runs this. On a GPU NCCL's watchdog writes the record when a
collective hangs; on the CPU each rank writes its own, to the same place: the recorder and its
format are the same.
"""

from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path

import pytest

from holdfast.supervisor import Context
from tests.system.supervisor.policies.rig import POLICIES
from tests.system.supervisor.rig import Managers, attach
from tests.waits import free_port

sys.path.insert(0, str(POLICIES))
import debug_gather

TORCH = os.environ.get("HOLDFAST_TEST_TORCH", "")
PATIENCE = 90.0
WORKER = """
import os, threading, time
import torch, torch.distributed as dist
from holdfast.supervisor import get_message_queue
rank = int(os.environ["RANK"])
dist.init_process_group("gloo")
def read_a_slow_disk(): time.sleep(6000)
def reduce_gradients(): dist.all_reduce(torch.ones(3))
def record():
    time.sleep(2)
    path = os.environ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE"] + str(rank)
    with open(path + ".new", "wb") as file:
        file.write(torch._C._distributed_c10d._dump_fr_trace())
    os.replace(path + ".new", path)
    get_message_queue().send("recorded")
reduce_gradients()
threading.Thread(target=record, daemon=True).start()
read_a_slow_disk() if rank == 2 else reduce_gradients()
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not TORCH,
        reason="HOLDFAST_TEST_TORCH names no python that has torch; `make ddp` brings one",
    ),
]


def test_the_stacks_and_the_flight_record_name_the_rank_that_never_came(
    ctx: Context, managers: Managers, tmp_path: Path
) -> None:
    hosts, _ = attach(ctx, managers, 3)
    flight = tmp_path / "flight_"
    env = {
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(flight), "TORCH_FR_BUFFER_SIZE": "100", "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
        "PYTHONPATH": str(Path(debug_gather.__file__).parents[4] / "src"),
    }  # fmt: skip
    group = ctx.create_process_group(hosts, [TORCH, "-c", WORKER], env=env)
    group.gather().result(PATIENCE)
    words = debug_gather.gather_debug(ctx, group, tmp_path / "report.txt")
    assert words.index("read_a_slow_disk (") < words.index("reduce_gradients ("), (
        "the odd one comes first:\n" + words
    )
    assert "3 ranks (0-2):\nleft a dump of NCCL's flight recorder" in words, words
    records = [Path(f"{flight}{rank}").read_bytes() for rank in range(3)]
    counts = [len(pickle.loads(record)["entries"]) for record in records]  # noqa: S301  this test's own ranks wrote them
    assert counts == [2, 2, 1], "the record says as well who never entered the second collective"
