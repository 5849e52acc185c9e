"""Each library in a script of its user, with a real agent's line: beats, a stop in the middle, the
next attempt, and the same script outside Holdfast.

`make integrations` installs the libraries; HOLDFAST_TEST_INTEGRATIONS names their Python.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

PYTHON = os.environ.get("HOLDFAST_TEST_INTEGRATIONS", "")
SCRIPTS = Path(__file__).parent / "scripts"
SOURCE = Path(__file__).parents[3] / "src"
SECONDS = 240
pytestmark = pytest.mark.skipif(
    not PYTHON, reason="HOLDFAST_TEST_INTEGRATIONS names no Python with the libraries"
)
TRAINING = ("torch", "transformers", "lightning", "accelerate")


class Line:
    """What the agent offers a task: a socket for beats and a folder for checkpoints."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.saved = folder / "saved"
        self.saved.mkdir()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(folder / "beats"))
        self.steps: list[int] = []
        self.total: int | None = None
        threading.Thread(target=self.read, daemon=True).start()  # the kernel keeps ten datagrams

    def environment(self) -> dict[str, str]:
        found = {
            "HOLDFAST_TASK": "0123456789abcdefghjk:0:1",
            "HOLDFAST_BEAT_SOCKET": str(self.folder / "beats"),
            "HOLDFAST_CHECKPOINT_OUT": str(self.saved),
        }
        left = self.find_checkpoint()
        if left is not None:
            kept = left.rename(self.folder / "checkpoint")
            found |= {
                "HOLDFAST_CHECKPOINT": str(kept),
                "HOLDFAST_CHECKPOINT_STEP": left.name.partition(".")[2],
            }
        return found

    def find_checkpoint(self) -> Path | None:
        return next(iter(self.saved.glob("checkpoint.*")), None)

    def read(self) -> None:
        while told := self.socket.recv(4096):
            beat = json.loads(told)
            if "step" in beat:
                self.total = beat.get("total", self.total)
                self.steps.append(beat["step"])


def reach(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < until
        time.sleep(0.01)


def start(script: str, folder: Path, more: dict[str, str]) -> subprocess.Popen[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    environment |= {
        "PYTHONPATH": str(SOURCE),
        "TMPDIR": str(folder),
        "CUDA_VISIBLE_DEVICES": "",
        **more,
    }
    return subprocess.Popen(
        [PYTHON, str(SCRIPTS / script), str(folder / "out")],
        env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    """What it printed. A process that does not end is killed."""
    try:
        out, error = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 0, error
    return out


@pytest.mark.parametrize("library", TRAINING)
def test_a_training_that_is_stopped_goes_on_where_it_was(library: str, tmp_path: Path) -> None:
    line = Line(tmp_path)
    (tmp_path / "out").mkdir()
    first = start(f"train_{library}.py", tmp_path, line.environment())
    reach(lambda: max(line.steps, default=0) >= 5)
    first.send_signal(signal.SIGTERM)
    _, error = first.communicate(timeout=SECONDS)
    assert first.returncode == -signal.SIGTERM, error
    left = line.find_checkpoint()
    assert left is not None, error
    stopped_at = int(left.name.partition(".")[2])
    assert 5 <= stopped_at < 40
    reach(lambda: stopped_at in line.steps)
    line.steps.clear()

    for entry in (tmp_path / "out").iterdir():  # the next attempt runs on another host
        subprocess.run(["rm", "-r", str(entry)], check=True)
    said = finish(start(f"train_{library}.py", tmp_path, line.environment()))
    assert said.strip().endswith(f"done 40 from {stopped_at}")
    reach(lambda: line.steps[-1:] == [40])
    assert min(line.steps) > stopped_at
    assert line.total == 40


@pytest.mark.parametrize("library", TRAINING)
def test_outside_holdfast_it_is_a_plain_training(library: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert "done 40 from 0" in finish(start(f"train_{library}.py", tmp_path, {}))


def test_diffusers_beats_after_each_denoising_step(tmp_path: Path) -> None:
    line = Line(tmp_path)
    assert "done (1, 16, 16, 3)" in finish(start("draw_diffusers.py", tmp_path, line.environment()))
    reach(lambda: line.steps[-1:] == [10])
    assert line.total == 10


def test_ray_tasks_beat_themselves_and_their_driver_for_each_result(tmp_path: Path) -> None:
    short = Path(
        subprocess.check_output(["mktemp", "-d", "-p", "/tmp"], text=True).strip()
    )  # Ray's sockets have long names
    try:
        line = Line(short)
        said = finish(start("count_ray.py", short, line.environment()))
        assert re.search(r"done \[0, 1, 2, 3, 4, 5, 6, 7\]", said)
        reach(lambda: 8 in line.steps and bool(set(line.steps) & set(range(1000, 1008))))
        assert line.total == 8
    finally:
        subprocess.run(["rm", "-r", str(short)], check=True)
