"""Train with PyTorch's DistributedDataParallel over gloo, beat after each step, and print nothing else.

    paced_ddp.py STEPS [waits] [checksums] [WRONG_RANK WRONG_STEP]

waits: tell how long each step waited for gradients. checksums: tell one of the weights after each
step; where the file of $WRONG is there, that rank computes wrongly from that step on, as a
broken device does. Each rank makes a file with the name of $GO and its number when it is ready, and the
first step begins when the file of $GO is there.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from holdfast.integrations.torch import checksum, tell_waits
from holdfast.work import beat

WORDS = sys.argv[2:]
torch.set_num_threads(1)
torch.manual_seed(7)
dist.init_process_group("gloo")
rank = dist.get_rank()
width = 256
passes = 5 if "checksums" in WORDS else 27
model = DistributedDataParallel(
    torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
)
if "waits" in WORDS:
    tell_waits(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batch = torch.randn(64, width, generator=torch.Generator().manual_seed(rank))
Path(f"{os.environ['GO']}{rank}").touch()
while not Path(os.environ["GO"]).exists():
    time.sleep(0.05)
for step in range(1, int(sys.argv[1]) + 1):
    for _ in range(passes):  # gradients of one step are gathered over several passes
        with model.no_sync():
            model(batch).square().mean().backward()
    model(batch).square().mean().backward()
    if "checksums" in WORDS and Path(os.environ["WRONG"]).exists():
        wrong_rank, wrong_step = map(int, Path(os.environ["WRONG"]).read_text().split())
        if rank == wrong_rank and step >= wrong_step:
            next(model.parameters()).grad[3, 5] += 1e-3
    optimizer.step()
    optimizer.zero_grad()
    if "checksums" in WORDS:
        beat(step, checksum=checksum(model.parameters()))
        time.sleep(0.05)
    else:
        beat(step)
print(f"rank {rank} is done", flush=True)
os._exit(0)
