"""The whole policy: checked hosts, failures, a hang that is explained, and hosts that are replaced."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from tests.system.supervisor.policies.rig import POLICIES, run_policy

# What happens at each start: a rank fails; one hangs; the warden of one is killed, and with it its
# host; one host fails twice, and has to go; then nothing. Steps are judged only of the rank that
# hangs, and only once it does: all else is a section, in which a rank may be as slow as its machine.
# The other rank leaves its section too then, because a section of one rank excuses those that wait for it.
WORKER = """
import os, sys, time
from pathlib import Path
from holdfast.process.table import read_entry
from holdfast.supervisor import get_message_queue
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
start, queue = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), get_message_queue()
def read_a_slow_disk(): time.sleep(6000)
queue.send({"section": "eval"})
with open(folder / "starts", "a") as file:
    file.write(f"{start} {rank} {read_entry(os.getppid()).ppid}\\n")
for step in range(8):
    time.sleep(0.05)
    queue.send({"step": step})
    if step == 4 and rank == "1":
        if start in (0, 3): sys.exit(3)
        if start == 1:
            for message in {"section": None}, {"step": 5}, {"step": 6}: queue.send(message)
            read_a_slow_disk()
        if start == 2: os.kill(os.getppid(), 9)
if start == 1: queue.send({"section": None})
while start < 4:
    time.sleep(0.1)
    if start == 1: queue.send({"step": (step := step + 1)})
"""


def managers(folder: Path) -> dict[tuple[int, str], str]:
    """By start and rank, under which manager it ran."""
    lines = [line.split() for line in (folder / "starts").read_text().splitlines()]
    return {(int(start), rank): manager for start, rank, manager in lines}


@pytest.mark.longest
@pytest.mark.heavy
@pytest.mark.slow
def test_it_trains_through_everything(tmp_path: Path) -> None:
    words = ["--hosts", "2", "--local", "--least", "4", "--strikes", "1"]
    command = [sys.executable, "-c", WORKER, str(tmp_path)]
    code, said = run_policy("train_forever.py", tmp_path, *words, "--", *command)
    assert code == 0, said
    assert "done after 4 restarts" in said
    assert "2 hosts chosen, 0 replaced" in said, "the first hosts were checked"
    assert said.count("1 host chosen, 0 replaced") >= 3, "and so were their successors"
    hang = next(line for line in said.splitlines() if "policy: no progress for" in line)
    assert "train1 on local-" in hang
    assert "rank 1 is in read_a_slow_disk (<string>:8)" in hang, hang
    assert "rank 0 is in <module>" in hang
    assert hang.rstrip().endswith((tmp_path / "debug-report.txt").read_text().splitlines()[0])
    found = managers(tmp_path)
    assert len({found[start, "0"] for start in range(5)}) == 1, "the good host keeps its place"
    assert len({found[start, "1"] for start in range(5)}) == 5, "each that failed was replaced"
    assert "its ranks were the first to fail 1 times" in said


def test_it_is_a_page_of_code() -> None:
    source = (POLICIES / "train_forever.py").read_text()
    texts = [
        node.body[0]
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None
    ]
    inside = {at for text in texts for at in range(text.lineno, (text.end_lineno or 0) + 1)}
    code = [
        line
        for at, line in enumerate(source.splitlines(), 1)
        if line.strip() and not line.strip().startswith("#") and at not in inside
    ]
    assert 50 < len(code) <= 100
