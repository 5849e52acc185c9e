"""A training loop whose data comes from torch's own DataLoader workers, and that saves at a stop.

    python trainer.py [RANK] [spawn]

STOP_SAVE: seconds that the save takes, or "no" where another program saves. The file
`ready` says that the loop turns, `state/step` is the newest step.
"""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import holdfast

STEPS = 100_000


class Rows(Dataset[torch.Tensor]):
    """Rows that take a moment each to be made."""

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(0.02)
        return torch.full((1000,), float(index))


def train(rank: int) -> None:
    """Turn until a stop; rank 0 saves."""
    torch.set_num_threads(1)
    model = torch.nn.Linear(1000, 1000)  # 4 MB
    step = 0
    seconds = os.environ.get("STOP_SAVE", "1")

    def save() -> None:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            torch.save(model.state_dict(), io.BytesIO())
            time.sleep(0.01)
        out = io.BytesIO()
        torch.save({"step": step, "model": model.state_dict()}, out)
        holdfast.checkpoint.save(out.getvalue(), step=step)

    if seconds != "no" and rank == 0:
        holdfast.on_drain(save)
    Path("state").mkdir(exist_ok=True)
    for row in DataLoader(Rows(), num_workers=2, batch_size=1, timeout=120):
        step += 1
        model(row)
        if rank == 0:
            Path("state", "step").write_text(str(step))
        if step == 3:
            Path(f"ready{rank}").touch()
            print("ready", flush=True)


def main() -> None:
    """Find the rank as the launcher tells it."""
    given = sys.argv[1:]
    names = ("LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    told = [os.environ[name] for name in names if name in os.environ]
    if "spawn" in given:
        torch.multiprocessing.spawn(train, nprocs=2)  # type: ignore[attr-defined,no-untyped-call]
    else:
        train(int(next(iter([*told, *given]), "0")))


if __name__ == "__main__":
    main()
