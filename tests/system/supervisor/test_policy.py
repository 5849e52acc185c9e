"""The example policy as a user runs it, against a table of what each rank does at each attempt."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.waits import run_patiently

POLICY = Path(__file__).resolve().parents[3] / "examples" / "policies" / "restart_on_failure.py"
# rank → what it does at the first, second, … attempt; then it succeeds.
WORKER = """
import os, signal, sys, time
from holdfast.process.table import read_entry
folder, table = sys.argv[1], eval(sys.argv[2])
rank = int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
with open(f"{folder}/attempts", "a") as file: file.write(f"{attempt}\\n")
fault = (table.get(rank, []) + [None] * 9)[attempt]
if fault == "exit": sys.exit(3)
if fault == "raise": raise RuntimeError("as planned")
if fault == "wait": time.sleep(6000)
if fault == "kill manager":
    warden = os.getppid()
    os.kill(read_entry(warden).ppid, signal.SIGKILL)
    time.sleep(6000)
assert 29500 <= int(os.environ["MASTER_PORT"]) < 30500 and os.environ["WORLD_SIZE"] == "2"
"""


def run_policy(
    tmp_path: Path, faults: dict[int, list[str]], *more: str
) -> tuple[int, str, set[int]]:
    words = [
        sys.executable,
        str(POLICY),
        *"--hosts 2 --local --first-delay 0.1".split(),
        *more,
        "--",
    ]
    words += [sys.executable, "-c", WORKER, str(tmp_path), repr(faults)]
    done = run_patiently(words, cwd=tmp_path, capture_output=True, text=True, seconds=100)
    return (
        done.returncode,
        done.stderr,
        {int(line) for line in (tmp_path / "attempts").read_text().splitlines()},
    )


@pytest.mark.slow
def test_it_survives_every_fault_of_the_table(tmp_path: Path) -> None:
    faults = {0: ["exit", "wait", "wait"], 1: ["wait", "raise", "kill manager"]}
    code, words, attempts = run_policy(tmp_path, faults)
    assert code == 0, words
    assert attempts == {0, 1, 2, 3}, words
    assert "done after 3 restarts" in words
    assert "ended with 3" in words
    assert "is lost: nothing was heard of it" in words


@pytest.mark.slow
def test_it_gives_up_with_the_reason(tmp_path: Path) -> None:
    code, words, attempts = run_policy(tmp_path, {1: ["exit"] * 5}, "--max-restarts", "1")
    assert code == 1
    assert attempts == {0, 1}
    assert "given up after 1 restarts: train1 on local-" in words
