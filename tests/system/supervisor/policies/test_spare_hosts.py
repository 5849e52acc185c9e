"""A spare takes the place of a host that is lost, or that fails again and again; the other ranks
stay where they are."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.system.supervisor.policies.fakes import (
    FakeContext,
    FakeGroup,
    FakeHost,
    all_succeed,
    fail,
    lose,
)
from tests.system.supervisor.policies.rig import POLICIES, STEP_PATIENCE, running
from tests.waits import wait_until

sys.path.insert(0, str(POLICIES))
import spare_hosts

# Says which rank ran under which manager, then runs until the test says so; with "fail", rank 1's
# first host always fails.
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
    words = [*"--hosts 2 --spares 1 --".split(), sys.executable, "-c", WORKER, str(tmp_path), "run"]
    with running("spare_hosts.py", tmp_path, *words) as policy:
        for name in ("m0", "m1", "m2"):
            policy.start_manager(name)
        wait_until(lambda: len(placed(tmp_path, 0)) == 2, STEP_PATIENCE)
        first = placed(tmp_path, 0)
        pids = {manager.pid: name for name, manager in policy.managers.items()}
        policy.kill_manager(pids[first["0"]])
        wait_until(
            lambda: len(placed(tmp_path, 1)) == 2, STEP_PATIENCE
        )  # no manager was started meanwhile
        second = placed(tmp_path, 1)
        assert second["1"] == first["1"]
        assert second["0"] == next(pid for pid in pids if pid not in first.values())
        (tmp_path / "finish").touch()
        assert policy.process.wait(STEP_PATIENCE) == 0, policy.said()


@pytest.mark.slow
def test_a_host_that_fails_again_is_exchanged(tmp_path: Path) -> None:
    words = [
        *"--hosts 2 --spares 1 --strikes 2 --".split(),
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
        assert (
            placed(tmp_path, 0)["1"]
            == placed(tmp_path, 1)["1"]
            == int((tmp_path / "bad").read_text())
        )
        assert placed(tmp_path, 2)["1"] not in (
            placed(tmp_path, 0)["1"],
            placed(tmp_path, 0).get("0"),
        )
        bad = next(m for m in policy.managers.values() if m.pid == placed(tmp_path, 0)["1"])
        assert bad.wait(STEP_PATIENCE) == 72
        (tmp_path / "finish").touch()
        assert policy.process.wait(STEP_PATIENCE) == 0, policy.said()
        assert "its ranks were the first to fail 2 times" in policy.said()


# ---- what it decides, against a context that only remembers


def run_main(monkeypatch: pytest.MonkeyPatch, ctx: FakeContext, *words: str) -> int:
    monkeypatch.setattr(spare_hosts, "Context", lambda **_: ctx)
    monkeypatch.setattr(spare_hosts, "DELAY_SECONDS", 0.0)
    monkeypatch.setattr(sys, "argv", ["spare_hosts.py", *words, "train"])
    return spare_hosts.main()


def numbers(group: FakeGroup) -> list[int]:
    """The hosts of a group, by rank."""
    return [host.number for host in group.hosts]


def make_bench(ctx: FakeContext, spares: int) -> Any:
    fake: Any = ctx
    return spare_hosts.Bench(fake, spares, False)


def test_who_takes_whose_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts 0 to 2 run, 3 and 4 are spares; each further host that is asked for has the next
    number."""
    ctx = FakeContext(lose(1), lose(0), lose(1), all_succeed)
    assert run_main(monkeypatch, ctx, "--hosts", "3", "--spares", "2") == 0
    assert [numbers(group) for group in ctx.groups] == [[0, 1, 2], [0, 3, 2], [4, 3, 2], [4, 5, 2]]
    assert [host.number for host, _ in ctx.replaced] == [1, 0, 3], (
        "each that went is replaced, once"
    )
    assert [group.env["TORCHELASTIC_RESTART_COUNT"] for group in ctx.groups] == ["0", "1", "2", "3"]
    assert all(group.running_when_forgotten == 0 for group in ctx.groups)


def test_a_host_is_struck_out_by_its_own_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = FakeContext(fail(1), fail(2), fail(1), fail(0), fail(1), fail(1), all_succeed)
    assert run_main(monkeypatch, ctx, "--hosts", "3", "--spares", "1", "--strikes", "2") == 0
    assert [numbers(group) for group in ctx.groups] == [
        [0, 1, 2],
        [0, 1, 2],
        [0, 1, 2],
        [0, 3, 2],
        [0, 3, 2],
        [0, 3, 2],
        [0, 4, 2],
    ]
    assert [(host.number, reason) for host, reason in ctx.replaced] == [
        (1, "its ranks were the first to fail 2 times"),
        (3, "its ranks were the first to fail 2 times"),
    ]


def test_the_bench_without_a_spare_waits_for_the_first_to_come() -> None:
    ctx = FakeContext()
    ctx.come_at_once = False
    bench = make_bench(ctx, 2)
    old = FakeHost(9).come()
    threading.Timer(0.2, ctx.hosts[1].come).start()
    new = bench.exchange(old, "it is bad")
    assert new is ctx.hosts[1]
    assert bench.spares == [ctx.hosts[0], ctx.hosts[2]], (
        "it may not be given out twice, and there are as many as before"
    )


def test_spares_that_are_lost_are_replaced() -> None:
    ctx = FakeContext()
    bench = make_bench(ctx, 2)
    first, second = ctx.hosts
    ctx.come_at_once = False
    first.lose()
    new = bench.exchange(FakeHost(9).come(), "it is bad")
    assert new is second
    assert first not in bench.spares
    assert len(bench.spares) == 2
    assert first in [host for host, _ in ctx.replaced]


def test_the_cap_is_a_count_of_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = FakeContext(lose(0), lose(0), lose(0), all_succeed)
    assert run_main(monkeypatch, ctx, "--hosts", "1", "--max-restarts", "2") == 1
    assert len(ctx.groups) == 3
    ctx = FakeContext(lose(0), lose(0), all_succeed)
    assert run_main(monkeypatch, ctx, "--hosts", "1", "--max-restarts", "2") == 0
