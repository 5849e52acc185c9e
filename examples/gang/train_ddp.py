"""Train the digits network with PyTorch's DistributedDataParallel, over gloo on CPUs.

    torchrun --nproc-per-node 4 examples/gang/train_ddp.py
    holdfast run --tasks 4 -- python examples/gang/train_ddp.py

It does not use Holdfast: ranks and rendezvous come from the environment, which has torchrun's
variables under both.
"""

from __future__ import annotations

import argparse
import gzip
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DATA = Path(__file__).resolve().parent.parent / "digits" / "digits.csv.gz"
BATCH = 32


def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the images and the digits."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float32)
    return torch.from_numpy(table[:, :64] / 16.0), torch.from_numpy(table[:, 64].astype(np.int64))


def main() -> None:
    """Train for some steps; rank 0 prints the loss over all lines."""
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--steps", type=int, default=200)
    opts = args.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)  # the same first weights in every rank and every run
    dist.init_process_group(
        "gloo"
    )  # env://, the default: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 10))
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    images, digits = load()
    for step in range(opts.steps):
        generator = torch.Generator().manual_seed(step)
        pick = torch.randint(len(digits), (world, BATCH), generator=generator)[rank]
        loss = torch.nn.functional.cross_entropy(model(images[pick]), digits[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        final = torch.nn.functional.cross_entropy(model(images), digits).item()
    if rank == 0:
        print(f"world {world} steps {opts.steps} final loss {final:.9f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # gloo's own threads race with the interpreter's end: now and then a rank aborts there, its work done.
    os._exit(0)
