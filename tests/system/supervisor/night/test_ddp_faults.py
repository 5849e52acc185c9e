"""A real PyTorch DDP training through the same bad night: it comes to the weights of an undisturbed
run, bit for bit.

`make ddp` brings torch and runs this. Bit for bit because gloo adds in an order that the buckets
decide, the example keeps its buckets as they are, and what a step takes of the data depends on its
number alone.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.system.supervisor.night.night import RANK, ROOT, begin_night
from tests.system.supervisor.night.test_bad_night import (
    EVERY,
    FAULTS,
    NIGHT_SECONDS,
    RANKS,
    STEP_SECONDS,
    STEPS,
    check_night,
    read_results,
)
from tests.system.torchrun import run_torchrun

TRAINING = ROOT / "examples" / "policies" / "train_ddp.py"
TORCH = os.environ.get("HOLDFAST_TEST_TORCH", "")
ENV = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * NIGHT_SECONDS + 150),
    pytest.mark.skipif(
        not TORCH,
        reason="HOLDFAST_TEST_TORCH names no python that has torch; `make ddp` brings one",
    ),
]


def train_undisturbed(folder: Path) -> dict[str, Any]:
    """What the same script comes to under torchrun."""
    steps = ["--steps", str(STEPS), "--every", str(STEPS)]
    done = run_torchrun(
        TORCH,
        RANKS,
        lambda number: [str(TRAINING), "--state", str(folder / str(number)), *steps],
        seconds=140,
        environment={**os.environ, **ENV},
    )
    # torchrun's ranks write unbuffered, a text and its line's end apart: two results may stand on
    # one line.
    (found,) = set(re.findall(r"\{[^{}]*\}", done))
    result: dict[str, Any] = json.loads(found)
    return result


def test_a_ddp_training_survives_a_bad_night(tmp_path: Path) -> None:
    expected = train_undisturbed(tmp_path / "undisturbed")
    words = [TORCH, str(RANK), "ddp", str(tmp_path), str(STEPS), str(EVERY), str(STEP_SECONDS)]
    env = {**ENV, "PYTHONPATH": str(ROOT / "src")}
    with begin_night(tmp_path, RANKS, words, env, FAULTS) as night:
        assert night.run(2 * NIGHT_SECONDS) == 0, night.said()
    check_night(night, tmp_path)
    assert read_results(tmp_path) == [expected] * RANKS
    assert 0.0 < float(expected["loss"]) < 0.5, "it learned nothing"
