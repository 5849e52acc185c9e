"""NCCL that waits for ever: what the debug report says of it, from NCCL's own flight record and the
stacks."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.supervisor import Context, gather_debug, make_flight_environment
from tests.gpu.conftest import Gpu, Notes, task_environment
from tests.system.supervisor.rig import Managers, attach
from tests.waits import free_port


@pytest.mark.parametrize(
    ("odd", "world"), [("absent", 2), ("absent at the start", 2), ("behind a kernel", 1)]
)
def test_a_report_on_a_collective_that_never_ends(
    gpu: Gpu, ctx: Context, managers: Managers, tmp_path: Path, note: Notes, odd: str, world: int
) -> None:
    hosts, _ = attach(ctx, managers, world)
    env = make_flight_environment(f"{tmp_path}/flight-") | task_environment() | {
        "NCCL_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()),
    }  # fmt: skip
    group = ctx.create_process_group(hosts, gpu.program("join", odd), env=env)
    group.gather().result(90)
    time.sleep(8.0)  # for torch to set itself up, and for NCCL to wait
    began = time.monotonic()
    report = gather_debug(ctx, group, tmp_path / "report.txt", width=1)
    note(
        odd=odd, took=round(time.monotonic() - began, 2), sentence=report.sentence, words=str(report)[:4000],
        files=sorted(f"{p.name} {p.stat().st_size}" for p in tmp_path.iterdir()),
    )  # fmt: skip
    if world == 1:
        assert "all_reduce" in report.sentence, report.sentence
        assert "flight record" in str(report)
    else:
        assert "rank 1" in report.sentence, report.sentence
        assert "read_a_slow_disk" in report.sentence, report.sentence
