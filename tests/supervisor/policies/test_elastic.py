"""A run that shrinks with a killed host and grows when another comes, and goes on from what was saved."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.proxy import wait_until
from tests.supervisor.policies.rig import STEP_PATIENCE, running

# Writes a line for each start; counts until told to save, saves, and goes on from there. Ends when the test says so.
WORKER = """
import os, sys, time
from pathlib import Path
from holdfast.supervisor import get_message_queue
folder, rank, world = Path(sys.argv[1]), os.environ["RANK"], os.environ["WORLD_SIZE"]
queue, saved = get_message_queue(), folder / f"saved{rank}"
start = int(saved.read_text()) if saved.exists() else 0
with open(folder / "starts", "a") as file: file.write(f"{world} {rank} {start}\\n")
asked = queue.recv_future()
while not (folder / "finish").exists():
    start += 1
    time.sleep(0.02)
    if asked.done() and asked.result() == "checkpoint":
        saved.write_text(str(start))
        queue.send("saved")
        time.sleep(6000)
sys.exit(0)
"""


def starts(folder: Path) -> list[list[str]]:
    file = folder / "starts"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.slow
def test_it_shrinks_and_grows(tmp_path: Path) -> None:
    words = ["--least", "1", "--most", "2", "--settle", "1", "--grow-after", "0", "--save", "30"]
    with running("elastic.py", tmp_path, *words, "--", sys.executable, "-c", WORKER, str(tmp_path)) as policy:
        policy.start_manager("m0")
        policy.start_manager("m1")
        wait_until(lambda: {"0", "1"} == {rank for world, rank, _ in starts(tmp_path) if world == "2"}, STEP_PATIENCE)
        before = len(starts(tmp_path))
        policy.kill_manager("m1")
        wait_until(lambda: any(world == "1" for world, _, _ in starts(tmp_path)[before:]), STEP_PATIENCE)
        before = len(starts(tmp_path))
        policy.start_manager("m1")  # the same machine, back: not barred
        wait_until(lambda: len(starts(tmp_path)) >= before + 2, STEP_PATIENCE)
        grown = starts(tmp_path)[before:]
        assert {(world, rank) for world, rank, _ in grown} == {("2", "0"), ("2", "1")}, policy.said()
        assert int(next(start for _, rank, start in grown if rank == "0")) > 0, "it did not go on from the checkpoint"
        (tmp_path / "finish").touch()
        assert policy.process.wait(STEP_PATIENCE) == 0, policy.said()
        assert "1 of 1 ranks saved" in policy.said()
        assert "m1 is lost" in policy.said()


@pytest.mark.slow
def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    words = ["--least", "1", "--most", "1", "--local", "--max-restarts", "1", "--"]
    with running("elastic.py", tmp_path, *words, sys.executable, "-c", "raise SystemExit(3)") as policy:
        assert policy.process.wait(STEP_PATIENCE) == 1
        assert "given up after 1 restarts: train0 on local-0 ended with 3" in policy.said()
