"""A spare takes the place of a host that is lost, or that fails again and again; the other ranks stay where they are."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.proxy import wait_until
from tests.supervisor.policies.rig import STEP_PATIENCE, running

# Says which rank ran under which manager, then runs until the test says so; with "fail", rank 1's first host always fails.
WORKER = """
import os, sys, time
from pathlib import Path
from holdfast.process.table import read_entry
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
manager = read_entry(os.getppid()).ppid
with open(folder / "starts", "a") as file: file.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {rank} {manager}\\n")
if rank == "1" and sys.argv[2] == "fail":
    bad = folder / "bad"
    if not bad.exists(): bad.write_text(str(manager))
    if bad.read_text() == str(manager): sys.exit(3)
while not (folder / "finish").exists(): time.sleep(0.02)
"""


def placed(folder: Path, attempt: int) -> dict[str, int]:
    """The manager's pid of each rank of an attempt."""
    file = folder / "starts"
    lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
    return {rank: int(manager) for number, rank, manager in lines if number == str(attempt)}


@pytest.mark.slow
def test_a_spare_takes_a_lost_hosts_place(tmp_path: Path) -> None:
    words = ["--hosts", "2", "--spares", "1", "--", sys.executable, "-c", WORKER, str(tmp_path), "run"]
    with running("spare_hosts.py", tmp_path, *words) as policy:
        for name in ("m0", "m1", "m2"):
            policy.start_manager(name)
        wait_until(lambda: len(placed(tmp_path, 0)) == 2, STEP_PATIENCE)
        first = placed(tmp_path, 0)
        pids = {manager.pid: name for name, manager in policy.managers.items()}
        policy.kill_manager(pids[first["0"]])
        wait_until(lambda: len(placed(tmp_path, 1)) == 2, STEP_PATIENCE)  # no manager was started meanwhile
        second = placed(tmp_path, 1)
        assert second["1"] == first["1"]
        assert second["0"] == next(pid for pid in pids if pid not in first.values())
        (tmp_path / "finish").touch()
        assert policy.process.wait(STEP_PATIENCE) == 0, policy.said()


@pytest.mark.slow
def test_a_host_that_fails_again_is_exchanged(tmp_path: Path) -> None:
    words = [
        "--hosts",
        "2",
        "--spares",
        "1",
        "--strikes",
        "2",
        "--",
        sys.executable,
        "-c",
        WORKER,
        str(tmp_path),
        "fail",
    ]
    with running("spare_hosts.py", tmp_path, *words) as policy:
        for name in ("m0", "m1", "m2"):
            policy.start_manager(name)
        wait_until(lambda: len(placed(tmp_path, 2)) == 2, STEP_PATIENCE)
        assert placed(tmp_path, 0)["1"] == placed(tmp_path, 1)["1"] == int((tmp_path / "bad").read_text())
        assert placed(tmp_path, 2)["1"] not in (placed(tmp_path, 0)["1"], placed(tmp_path, 0).get("0"))
        bad = next(m for m in policy.managers.values() if m.pid == placed(tmp_path, 0)["1"])
        assert bad.wait(STEP_PATIENCE) == 72
        (tmp_path / "finish").touch()
        assert policy.process.wait(STEP_PATIENCE) == 0, policy.said()
        assert "its ranks were the first to fail 2 times" in policy.said()
