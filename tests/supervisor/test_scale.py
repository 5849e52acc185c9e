"""Hundreds of simulated hosts in one process, over the real wire."""

from __future__ import annotations

import pytest

from holdfast.supervisor import Context, wait
from tests.supervisor.rig import PATIENCE


@pytest.mark.slow
def test_hundreds_of_simulated_hosts(ctx: Context) -> None:
    hosts = ctx.request_hosts(300)
    (pid,) = ctx.start_simulated_hosts(300)
    group = ctx.create_process_group(hosts, ["echo"], processes_per_host=4, simulate=True)
    assert wait([process.pid() for process in group], timeout=PATIENCE).not_done == set()
    assert len({host.hostname().result(0) for host in hosts}) == 300
    answers = group.gather()
    group.broadcast({"step": 1})
    assert answers.result(PATIENCE) == [{"step": 1}] * 1200
    assert pid > 0
    assert group.signal(10).result(PATIENCE) == 1200
    brief = ctx.create_process_group(hosts, ["sleep", "0.1"], simulate=True)
    failing = ctx.create_process_group(hosts, ["exit", "3"], simulate=True)
    assert {process.returncode().result(PATIENCE) for process in brief} == {0}
    assert {process.returncode().result(PATIENCE) for process in failing} == {3}
    status = ctx.status()
    assert (status.hosts_attached, status.hosts_lost, status.processes_running) == (300, 0, 1200)
    ctx.return_hosts(hosts[:100])
    assert {future.result(PATIENCE) for future in ctx.end(group[400:], 0.0)} == {-15}
