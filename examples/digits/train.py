"""Train a small network on handwritten digits, in numpy, with a beat at each step.

    python examples/digits/train.py --save state.npz [--steps 600] [--wedge-at 250]

It saves its state to a file and goes on from it.

`--wedge-at N` hangs the *first* attempt at step N the way a broken CUDA call does: a C function
that never returns, with Python's global lock held, so that no thread and no signal handler of the
process can run.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import os
import time
from pathlib import Path

import numpy as np

import holdfast

DATA = Path(__file__).with_name("digits.csv.gz")
BATCH = 64
HIDDEN = 48
RATE = 0.15


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return training images and digits, then test images and digits (every fifth line)."""
    with gzip.open(DATA, "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    images, digits = table[:, :64] / 16.0, table[:, 64].astype(int)
    test = np.arange(len(digits)) % 5 == 0
    return images[~test], digits[~test], images[test], digits[test]


def initial() -> dict[str, np.ndarray]:
    """The same first weights every time, so that two runs can be compared."""
    rng = np.random.default_rng(7)
    return {
        "w1": rng.normal(0, 0.3, (64, HIDDEN)),
        "b1": np.zeros(HIDDEN),
        "w2": rng.normal(0, 0.3, (HIDDEN, 10)),
        "b2": np.zeros(10),
        "step": np.array(0),
    }


def forward(p: dict[str, np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the hidden layer and the probabilities of the ten digits."""
    hidden = np.tanh(x @ p["w1"] + p["b1"])
    logits = hidden @ p["w2"] + p["b2"]
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return hidden, e / e.sum(axis=1, keepdims=True)


def train_step(p: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """One step of gradient descent on one batch, in place; return the loss."""
    hidden, prob = forward(p, x)
    loss = -np.log(prob[np.arange(len(y)), y] + 1e-12).mean()
    d = prob.copy()
    d[np.arange(len(y)), y] -= 1
    d /= len(y)
    dh = (d @ p["w2"].T) * (1 - hidden**2)
    p["w2"] -= RATE * hidden.T @ d
    p["b2"] -= RATE * d.sum(axis=0)
    p["w1"] -= RATE * x.T @ dh
    p["b1"] -= RATE * dh.sum(axis=0)
    return float(loss)


def save(path: Path, p: dict[str, np.ndarray]) -> None:
    """Write the whole state beside the file and rename it over: a kill at any moment leaves a whole
    file."""
    beside = path.with_suffix(".tmp")
    with beside.open("wb") as f:
        np.savez(f, **p)
        f.flush()
        os.fsync(f.fileno())
    beside.replace(path)


def main() -> None:
    """Train, report the accuracy on the lines kept apart."""
    args = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    args.add_argument("--save", type=Path, required=True, help="the file the state is kept in")
    args.add_argument("--steps", type=int, default=600)
    args.add_argument("--every", type=int, default=20, help="save each so many steps")
    args.add_argument(
        "--wedge-at", type=int, default=None, help="hang the first attempt at this step"
    )
    args.add_argument(
        "--step-seconds", type=float, default=0.0, help="make each step take at least this long"
    )
    opts = args.parse_args()

    x, y, test_x, test_y = load()
    p = initial()
    if opts.save.exists():
        with np.load(opts.save) as saved:
            p = {name: saved[name].copy() for name in saved.files}
        print(f"going on from step {int(p['step'])}", flush=True)
    for step in range(int(p["step"]), opts.steps):
        # The batch depends on the step alone, so a run that was interrupted sees what an
        # uninterrupted one sees.
        pick = np.random.default_rng(step).integers(0, len(y), BATCH)
        loss = train_step(p, x[pick], y[pick])
        p["step"] = np.array(step + 1)
        holdfast.beat(step + 1, opts.steps)
        if (step + 1) % opts.every == 0:
            save(opts.save, p)
        if (step + 1) % 100 == 0:
            print(f"step {step + 1} of {opts.steps}: loss {loss:.4f}", flush=True)
        if step + 1 == opts.wedge_at and os.environ.get("HOLDFAST_ATTEMPT") == "1":
            print(f"step {step + 1}: wedging on purpose", flush=True)
            ctypes.PyDLL(None).sleep(1_000_000)  # PyDLL keeps the GIL while the C function runs
        time.sleep(opts.step_seconds)
    save(opts.save, p)
    accuracy = (forward(p, test_x)[1].argmax(axis=1) == test_y).mean()
    print(f"accuracy {accuracy:.4f} after {opts.steps} steps", flush=True)


if __name__ == "__main__":
    main()
