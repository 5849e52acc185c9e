"""Every policy hands its ranks what torch's `env://` asks for: a script that runs under torchrun
runs under each of them."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor import Context, HostLost, find_rendezvous
from holdfast.supervisor.policy.rendezvous import RENDEZVOUS_PORTS
from tests.system.supervisor.policies.fakes import FakeHost
from tests.system.supervisor.policies.rig import run_policy

WORKER = """
import os, sys
from pathlib import Path
torchruns = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
Path(sys.argv[1], "rank" + os.environ["RANK"]).write_text(" ".join(os.environ.get(name, "missing") for name in torchruns))
"""
FOLDER = Path(__file__).resolve().parents[4] / "examples" / "policies"
POLICIES = {
    "debug_gather.py": ("--hosts", "2", "--after", "2"),
    "elastic.py": ("--least", "2", "--most", "2", "--settle", "1"),
    "health_checked_start.py": ("--hosts", "2", "--spares", "0"),
    "memory_checkpoints.py": ("--hosts", "2"),
    "progress_watchdog.py": ("--hosts", "2"),
    "restart_on_failure.py": ("--hosts", "2"),
    "spare_hosts.py": ("--hosts", "2", "--spares", "0"),
    "train_forever.py": ("--hosts", "2", "--spares", "0"),
}


@pytest.mark.slow
@pytest.mark.parametrize("policy", POLICIES)
def test_ranks_find_where_to_meet(tmp_path: Path, policy: str) -> None:
    words = [
        *POLICIES[policy],
        "--per-host",
        "2",
        "--local",
        "--",
        sys.executable,
        "-c",
        WORKER,
        str(tmp_path),
    ]
    code, said = run_policy(policy, tmp_path, *words)
    assert code == 0, said
    told = [(tmp_path / f"rank{rank}").read_text().split() for rank in range(4)]
    assert [words[:4] for words in told] == [
        [str(rank), "4", str(rank % 2), "2"] for rank in range(4)
    ]
    places = {tuple(words[4:]) for words in told}
    assert len(places) == 1, "all ranks are to meet at one place"
    ((address, port),) = places
    assert address != "missing"
    assert int(port) > 0


def test_ranks_meet_at_the_port_that_the_first_host_found() -> None:
    hosts: Any = [FakeHost(4).come(), FakeHost(5).come()]
    assert find_rendezvous(hosts, restarts=3) == {
        "MASTER_ADDR": "10.0.0.4",
        "MASTER_PORT": "29504",
        "TORCHELASTIC_RESTART_COUNT": "3",
    }


@pytest.mark.slow
def test_a_host_finds_a_port_that_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, Context() as ctx:
        port = taken.getsockname()[1]
        (host,) = ctx.request_hosts(1)
        answer = host.find_port(range(port, port + 1))  # asked before its manager came
        ctx.start_local_managers(1)
        assert answer.result(60) == 0
        assert int(find_rendezvous([host])["MASTER_PORT"]) in RENDEZVOUS_PORTS
        ctx.return_hosts([host])
        with pytest.raises(HostLost):
            host.find_port(RENDEZVOUS_PORTS).result(60)


def test_every_policy_is_among_them() -> None:
    assert {path.name for path in FOLDER.glob("*.py")} - {"train_ddp.py"} == set(POLICIES)
