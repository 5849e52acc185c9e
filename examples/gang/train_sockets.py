"""Train the digits network with many ranks, numpy and sockets: rank 0 sums the gradients.

    holdfast run --tasks 8 -- python examples/gang/train_sockets.py
    holdfast run -- python examples/gang/train_sockets.py --state /tmp/state

It finds its peers as a torch script does, by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. With
--state every rank saves to files of its own and goes on from the newest step that all of them have;
without it rank 0 saves by `holdfast.checkpoint` and sends the state to the others. A rank whose
peer died ends with an error, as under NCCL or gloo; Holdfast stops and starts all ranks together.
"""

from __future__ import annotations

import argparse
import gzip
import io
import os
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import holdfast

DATA = Path(__file__).resolve().parent.parent / "digits" / "digits.csv.gz"
BATCH = 64
RATE = 0.15
SHAPE = (65, 10)  # one layer and its bias: light enough for eight ranks on a laptop
CONNECT_SECONDS = 60.0
KEEP = 2  # no rank is ever more than one saved step ahead of another, so two are enough to find one all have


def load() -> tuple[np.ndarray, np.ndarray]:
    """Return the images, a one appended to each for the bias, and the digits."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",", max_rows=400)
    return np.hstack([table[:, :64] / 16.0, np.ones((len(table), 1))]), table[:, 64].astype(int)


def gradient(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The summed gradient of the cross-entropy over these lines."""
    logits = x @ weights
    prob = np.exp(logits - logits.max(axis=1, keepdims=True))
    prob /= prob.sum(axis=1, keepdims=True)
    prob[np.arange(len(y)), y] -= 1
    return np.asarray(x.T @ prob)


def shard(step: int, rank: int, world: int, lines: int) -> np.ndarray:
    """Which lines a rank takes in a step: they depend on these numbers alone, so an interrupted run
    sees the same."""
    return np.random.default_rng(step).integers(0, lines, BATCH)[rank::world]


def train_alone(steps: int, world: int) -> np.ndarray:
    """What `world` ranks come to, computed by one process in the same order of additions."""
    x, y = load()
    weights = np.zeros(SHAPE)
    for step in range(steps):
        picks = [shard(step, rank, world, len(y)) for rank in range(world)]
        total = gradient(weights, x[picks[0]], y[picks[0]])
        for pick in picks[1:]:
            total = total + gradient(weights, x[pick], y[pick])
        weights = weights - RATE * total / BATCH
    return weights


class Ring:
    """The connections of one rank: to rank 0, and rank 0's to all."""

    def __init__(self, rank: int, world: int, address: str, port: int) -> None:
        self.rank = rank
        self.peers: list[socket.socket] = []
        if rank == 0:
            with socket.create_server(("", port), backlog=world) as server:
                server.settimeout(CONNECT_SECONDS)
                found: dict[int, socket.socket] = {}
                while len(found) < world - 1:
                    peer, _ = server.accept()
                    found[struct.unpack("!I", _receive(peer, 4))[0]] = peer
                self.peers = [found[n] for n in sorted(found)]
        else:
            self.peers = [_connect(address, port)]
            self.peers[0].sendall(struct.pack("!I", rank))

    def add_up(self, mine: np.ndarray) -> np.ndarray:
        """The sum over all ranks, added in the order of the ranks, at every rank."""
        total = mine
        if self.rank:
            self.peers[0].sendall(mine.tobytes())
            return np.frombuffer(_receive(self.peers[0], mine.nbytes), mine.dtype).reshape(
                mine.shape
            )
        for peer in self.peers:
            total = total + np.frombuffer(_receive(peer, mine.nbytes), mine.dtype).reshape(
                mine.shape
            )
        for peer in self.peers:
            peer.sendall(total.tobytes())
        return total


def _connect(address: str, port: int) -> socket.socket:
    give_up_at = time.monotonic() + CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection((address, port), timeout=CONNECT_SECONDS)
        except ConnectionRefusedError:  # rank 0 is not that far yet
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.02)


def _receive(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        more = peer.recv(size - len(data))
        if not more:
            raise ConnectionResetError("Connection closed by peer")
        data += more
    return bytes(data)


class Saved:
    """One rank's own files, one for each of the last steps it saved."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder / f"rank{rank}"
        self._folder.mkdir(parents=True, exist_ok=True)

    def steps(self) -> list[int]:
        """The steps that are there, the newest last."""
        return sorted(int(file.stem) for file in self._folder.glob("*.npy"))

    def save(self, step: int, weights: np.ndarray) -> None:
        """Write beside and rename over: a kill at any moment leaves whole files."""
        beside = self._folder / "beside.tmp"
        with beside.open("wb") as file:
            np.save(file, weights)
        beside.replace(self._folder / f"{step}.npy")
        for old in self.steps()[:-KEEP]:
            (self._folder / f"{old}.npy").unlink()

    def load(self, step: int) -> np.ndarray:
        """The weights of a saved step."""
        return np.asarray(np.load(self._folder / f"{step}.npy"))


class Checkpoint:
    """What rank 0 leaves for its next attempt, by Holdfast: the step and the weights, as numpy
    writes them."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def save(self, step: int, weights: np.ndarray) -> None:
        """Rank 0 saves for all; every rank has the same weights."""
        if self._rank == 0:
            file = io.BytesIO()
            np.savez(file, step=step, weights=weights)
            holdfast.checkpoint.save(file.getvalue(), step)

    def load(self, ring: Ring) -> tuple[int, np.ndarray]:
        """What rank 0 has, at every rank: the others add nothing to it."""
        found = np.zeros(1 + SHAPE[0] * SHAPE[1])
        data = holdfast.checkpoint.load() if self._rank == 0 else None
        if data is not None:
            with np.load(io.BytesIO(data)) as saved:
                found = np.append(saved["step"], saved["weights"])
        total = ring.add_up(found)
        return int(total[0]), total[1:].reshape(SHAPE)


def agree_on_step(ring: Ring, saved: Saved, world: int, steps: int) -> int:
    """The newest step that every rank has saved; 0 for a fresh start."""
    have = np.zeros(steps + 1)
    have[[0, *saved.steps()]] = 1
    return int(np.flatnonzero(ring.add_up(have) == world)[-1])


def train(
    state: Path | None,
    steps: int,
    every: int,
    step_seconds: float = 0.0,
    on_step: Callable[[int], None] = lambda step: None,
) -> np.ndarray:
    """Be one rank of it until the last step. Returns the weights, the same at every rank."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ring = Ring(rank, world, os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    saved: Saved | Checkpoint
    if state is None:
        saved = Checkpoint(rank)
        first, weights = saved.load(ring)
    else:
        saved = Saved(state, rank)
        first = agree_on_step(ring, saved, world, steps)
        weights = saved.load(first) if first else np.zeros(SHAPE)
    print(f"rank {rank} of {world} goes on from step {first}", flush=True)
    x, y = load()
    for step in range(first, steps):
        pick = shard(step, rank, world, len(y))
        weights = weights - RATE * ring.add_up(gradient(weights, x[pick], y[pick])) / BATCH
        if (step + 1) % every == 0 or step + 1 == steps:
            saved.save(step + 1, weights)
        on_step(step + 1)
        time.sleep(step_seconds)
    return weights


def main() -> None:
    """Train and print how well it fits."""
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument(
        "--state",
        type=Path,
        help="the folder every rank keeps its own files in; holdfast.checkpoint otherwise",
    )
    args.add_argument("--steps", type=int, default=300)
    args.add_argument("--every", type=int, default=20, help="save each so many steps")
    args.add_argument(
        "--step-seconds", type=float, default=0.0, help="wait so long after each step"
    )
    opts = args.parse_args()
    weights = train(opts.state, opts.steps, opts.every, opts.step_seconds)
    x, y = load()
    print(
        f"accuracy {((x @ weights).argmax(axis=1) == y).mean():.4f} after {opts.steps} steps",
        flush=True,
    )


if __name__ == "__main__":
    main()
