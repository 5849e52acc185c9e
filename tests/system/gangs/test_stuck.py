"""A rank in an uninterruptible wait of the kernel: SIGKILL does nothing to it. Its gang goes on
elsewhere all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.cluster import Cluster
from tests.system.gangs import stuck_files
from tests.system.gangs.journal import find_pid, ranks_started
from tests.system.gangs.rig import SECONDS
from tests.waits import is_alive, wait_exit, wait_until

pytestmark = pytest.mark.slow

SCRIPT = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from tests.system.gangs.journal import Journal

journal = Journal(Path(sys.argv[1]))
journal.write("start")
if journal.rank == 1 and journal.attempt == 1:
    open({stuck!r} + "/never")  # a driver that hangs: no signal ends this, SIGKILL included
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
"""


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[tuple[Path, subprocess.Popen[bytes]]]:
    """A folder nothing in which can be opened, and the process that makes it so."""
    folder = tmp_path / "stuck"
    folder.mkdir()
    server = subprocess.Popen(
        [sys.executable, "-S", stuck_files.CODE, str(folder)], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        if server.stdout.readline() != b"ready\n":
            pytest.skip("this machine lets nobody mount a FUSE file system")
        yield folder, server
    finally:
        server.terminate()
        wait_exit(server, 20)


def state_of(pid: int) -> str:
    """R, S, D, Z … as the kernel has it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    "asked", [False, True], ids=["another rank falls", "its host is scaled down"]
)
def test_a_rank_that_no_signal_ends(
    cluster: Cluster, stuck: tuple[Path, subprocess.Popen[bytes]], asked: bool
) -> None:
    folder, server = stuck
    for n in range(4):
        cluster.add_host(f"host{n}", cpu_slots=1)
    cluster.client.set_config({"drain_force_seconds": 2})
    script = cluster.folder / "train.py"
    script.write_text(
        SCRIPT.format(root=str(Path(__file__).resolve().parents[3]), stuck=str(folder))
    )
    journal, go = cluster.folder / "journal", cluster.folder / "go"
    job = cluster.submit(
        sys.executable,
        str(script),
        str(journal),
        str(go),
        tasks=3,
        cpus=1,
        grace_seconds=1,
        retry={"max_retries": 1, "retry_delay": 0.0},
    )
    cluster.until(job, "running", seconds=SECONDS)
    wait_until(lambda: len(ranks_started(journal, job, 1)) == 3, SECONDS, what="all ranks")
    where = {task.rank: str(task.host_name) for task in cluster.client.tasks(job)}
    pids = {rank: find_pid(journal, job, rank, 1) for rank in range(3)}
    wait_until(lambda: state_of(pids[1]) in "SD", SECONDS, what="rank 1 to be in its wait")

    if asked:
        # On another rank's host, because the stuck rank cannot be asked.
        cluster.client.act_on_host(where[2], "drain", "too many", scale_down=True)
        cluster.add_host("spare", cpu_slots=1)
    else:
        os.kill(pids[0], signal.SIGKILL)
    wait_until(lambda: state_of(pids[1]) == "D", SECONDS, what="rank 1 to survive SIGKILL")
    assert cluster.client.job(job).state == "draining", (
        "nothing goes on while an end is not confirmed"
    )

    wait_until(
        lambda: cluster.client.host(where[1]).state == "quarantined",
        SECONDS,
        what="its host to be taken out of service",
    )
    assert state_of(pids[1]) == "D"
    cluster.until_attempt(job, 2, seconds=SECONDS)
    first, _ = cluster.client.attempts(job)
    kinds = [event.kind for event in cluster.client.events(job_id=job)]
    assert kinds.count("task.force_drained") == 1, kinds
    assert kinds.count("job.draining") == 1, kinds
    members = {m.rank: m for m in first.members}
    assert members[1].state == "failed"
    assert members[1].facts is not None
    assert members[1].facts.unkillable
    charged = {
        rank: (c.retries, c.infra) for rank, c in cluster.client.job(job).rank_charges.items()
    }
    if asked:
        assert (first.cause, first.trigger_rank, charged) == ("gpu_fault", 1, {"1": (0, 1)}), (
            first.reason
        )
    else:
        assert (first.cause, first.trigger_rank, charged) == ("nonzero_exit", 0, {"0": (1, 0)}), (
            first.reason
        )
    shown = cluster.cli("show", job, "--attempt", "1").stdout.decode()
    assert "SIGKILL" in shown, shown

    # It runs elsewhere, and no other job is placed beside the stuck rank.
    wait_until(
        lambda: len(ranks_started(journal, job, 2)) == 3,
        SECONDS,
        what="all ranks of the second attempt",
    )
    assert where[1] not in {task.host_name for task in cluster.client.tasks(job)}
    small = cluster.submit("true", cpus=1)
    if not asked:
        wait_until(lambda: cluster.cli("why", small).stdout, SECONDS)
        assert cluster.client.job(small).state == "queued"
    assert is_alive(pids[1])
    go.touch()
    cluster.until(job, "succeeded", seconds=SECONDS)
    cluster.until(small, "succeeded", seconds=SECONDS)
    assert cluster.client.attempts(small)[0].host != where[1]

    # The driver comes back: the process dies at last, and a person lets the host back.
    server.terminate()
    wait_until(lambda: not is_alive(pids[1]), SECONDS, what="the stuck process to end")
    assert cluster.client.host(where[1]).state == "quarantined", "that is a person's word"
    cluster.client.act_on_host(where[1], "release")
    for host in cluster.client.hosts():
        if host.name != where[1] and host.state == "active":
            cluster.client.act_on_host(host.name, "drain")
    last = cluster.submit("true", cpus=1)
    cluster.until(last, "succeeded", seconds=SECONDS)
    assert cluster.client.attempts(last)[0].host == where[1]
