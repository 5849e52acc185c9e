"""Checkpoints that outlive the training, and one host, in the memory of CPU processes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.supervisor.policies.rig import POLICIES, run_policy

sys.path.insert(0, str(POLICIES))
from memory_checkpoints import choose_step

# Saves at each step; fails as the table says: attempt 0 at step 3 by exit, attempt 1 at step 6 with its whole host.
WORKER = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from memory_checkpoints import load, save
from holdfast.process.table import read_entry
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
attempt = len(list(folder.glob(f"start-{rank}-*")))
found = load()
start, total = (found[0], int(found[1])) if found else (0, 0)
(folder / f"start-{rank}-{attempt}").write_text(str(start))
for step in range(start + 1, 10):
    total += step
    save(step, str(total).encode())
    (folder / f"at-{attempt}-{step}-{rank}").touch()
    while not (folder / f"at-{attempt}-{step}-{1 - int(rank)}").exists(): time.sleep(0.01)
    time.sleep(0.1)
    if rank == "1" and attempt == 0 and step == 3: sys.exit(3)
    if rank == "1" and attempt == 1 and step == 6:
        os.kill(read_entry(os.getppid()).ppid, signal.SIGKILL)
        time.sleep(6000)
(folder / f"total-{rank}").write_text(str(total))
"""


@pytest.mark.slow
def test_a_restart_and_a_lost_host_go_on_from_memory(tmp_path: Path) -> None:
    words = ["--hosts", "2", "--local", "--", sys.executable, "-c", WORKER, str(tmp_path), str(POLICIES)]
    code, said = run_policy("memory_checkpoints.py", tmp_path, *words)
    assert code == 0, said
    assert "done after 2 restarts" in said
    begun = [[int((tmp_path / f"start-{rank}-{attempt}").read_text()) for attempt in range(3)] for rank in (0, 1)]
    assert begun[0] == begun[1], "ranks began at different steps"
    first, second, third = begun[0]
    assert first == 0
    assert 1 <= second <= 3, said
    assert second < third <= 7, said  # what rank 1 had was on the host that died: this is the copy
    assert [(tmp_path / f"total-{rank}").read_text() for rank in (0, 1)] == [str(sum(range(10)))] * 2


def test_the_newest_step_that_all_have_is_chosen() -> None:
    kept = {"a": [[0, 1], [0, 2], [0, 3], [1, 1], [1, 2]], "b": [[1, 1], [1, 2]]}
    assert choose_step(kept, 2) == (2, {0: "a", 1: "a"})
    assert choose_step({"b": kept["b"]}, 2) is None
    assert choose_step({}, 1) is None
