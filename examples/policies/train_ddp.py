"""Train the digits network with PyTorch's DistributedDataParallel so that it may be stopped at any
moment and started again.

    python progress_watchdog.py --hosts 2 --local -- python train_ddp.py --state /shared/run
    torchrun --nproc-per-node 2 train_ddp.py --state /tmp/run                  # without a supervisor

Rank 0 saves weights and optimizer every few steps to a folder that all ranks see; a new start goes
on from the newest, and comes to the same weights as an undisturbed run. Under the supervisor, and
with Holdfast installed beside torch, every rank says its steps, so that the progress watchdog knows
how long one takes.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

DATA = Path(__file__).resolve().parent.parent / "digits" / "digits.csv.gz"
BATCH = 32
KEEP = 2


def load_digits() -> tuple[torch.Tensor, torch.Tensor]:
    """Read the images and the digits."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", dtype=np.float64)
    return torch.from_numpy(table[:, :64] / 16.0), torch.from_numpy(table[:, 64].astype(np.int64))


def find_step(folder: Path) -> int:
    """Return the newest saved step, as rank 0 sees it, at every rank; 0 without one."""
    found = torch.tensor([max((int(file.stem) for file in folder.glob("*.pt")), default=0)])
    dist.broadcast(found, 0)
    return int(found.item())


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Write beside, sync, and rename over: a kill at any moment leaves whole files."""
    folder.mkdir(parents=True, exist_ok=True)
    beside = folder / "beside.tmp"
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(folder / f"{step}.pt")
    for old in sorted(folder.glob("*.pt"), key=lambda file: int(file.stem))[:-KEEP]:
        old.unlink()


def make_report() -> Callable[[dict[str, Any]], None]:
    """Make the function that reports steps to the policy script; without a script it does
    nothing."""
    if "HOLDFAST_PROCESS" in os.environ:
        with contextlib.suppress(ImportError):
            from holdfast.supervisor import answer_flight_requests, get_message_queue

            answer_flight_requests()  # gloo's record, when a report on a hang asks for it
            return get_message_queue().send
    return lambda message: None


def digest(model: torch.nn.Module) -> str:
    """Compute SHA-256 over every bit of the weights."""
    whole = hashlib.sha256()
    for _, tensor in sorted(model.state_dict().items()):
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()


def train(
    folder: Path, steps: int, every: int, on_step: Callable[[int], None] = lambda step: None
) -> dict[str, Any]:
    """Be one rank of it until the last step. Returns the loss over all lines and a digest of the
    weights."""
    report = make_report()
    torch.set_num_threads(1)
    torch.manual_seed(7)  # the same first weights in every rank and every run
    dist.init_process_group(
        "gloo"
    )  # env://, the default: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
    rank, world = dist.get_rank(), dist.get_world_size()
    net = torch.nn.Sequential(
        torch.nn.Linear(64, 48), torch.nn.Tanh(), torch.nn.Linear(48, 10)
    ).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    first = find_step(folder)
    if first:
        saved = torch.load(folder / f"{first}.pt", weights_only=True)
        net.load_state_dict(saved["net"])
        optimizer.load_state_dict(saved["optimizer"])
    print(f"rank {rank} of {world} goes on from step {first}", flush=True)
    # DDP sorts its buckets anew after the first step of each start, and where a gradient lies
    # decides in which order gloo adds it up. This keeps them as they are, so that a run that was
    # interrupted comes to the same weights in every bit.
    model = DistributedDataParallel(net, find_unused_parameters=True)
    images, digits = load_digits()
    for step in range(first + 1, steps + 1):
        generator = torch.Generator().manual_seed(step)  # an interrupted run sees the same lines
        pick = torch.randint(len(digits), (world, BATCH), generator=generator)[rank]
        loss = torch.nn.functional.cross_entropy(model(images[pick]), digits[pick])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        report({"step": step})
        if rank == 0 and (step % every == 0 or step == steps):
            report({"section": "checkpoint"})
            save(folder, step, {"net": net.state_dict(), "optimizer": optimizer.state_dict()})
            report({"section": None})
        on_step(step)
    with torch.no_grad():
        final = torch.nn.functional.cross_entropy(net(images), digits).item()
    dist.barrier()
    dist.destroy_process_group()
    return {"world": world, "steps": steps, "loss": final, "digest": digest(net)}


def main() -> None:
    """Train and print the result."""
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument(
        "--state", type=Path, required=True, help="the folder of the checkpoints, seen by all ranks"
    )
    args.add_argument("--steps", type=int, default=200)
    args.add_argument("--every", type=int, default=10, help="save each so many steps")
    opts = args.parse_args()
    print(json.dumps(train(opts.state, opts.steps, opts.every)), flush=True)


if __name__ == "__main__":
    main()
