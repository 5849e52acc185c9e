"""The policies that ship run unchanged under `holdfast supervise`, through the loss of a host
manager."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.system.conftest import cluster
from tests.system.supervisor.holdfast.holdfast_rig import POLICIES, SECONDS, find_first
from tests.waits import wait_until

__all__ = ["cluster"]

pytestmark = pytest.mark.slow

# A rank that runs until it is let go, and then only if it was begun with all of the others.
WORK = """
import os, sys, time
here, rank = sys.argv[1], os.environ["RANK"]
open(f"{here}/began-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 'x')}-{rank}", "w").close()
while not os.path.exists(f"{here}/go"):
    time.sleep(0.05)
"""


@pytest.mark.parametrize(
    ("policy", "hosts", "ranks", "args"),
    [
        ("restart_on_failure.py", 2, 2, ("--hosts", "2", "--first-delay", "0.1")),
        ("spare_hosts.py", 3, 2, ("--hosts", "2", "--spares", "1")),
        ("train_forever.py", 2, 2, ("--hosts", "2", "--spares", "0")),
    ],
    ids=["restart_on_failure", "spare_hosts", "train_forever"],
)
def test_a_policy_goes_on_after_a_loss(
    cluster: Cluster, tmp_path: Path, policy: str, hosts: int, ranks: int, args: tuple[str, ...]
) -> None:
    for number in range(hosts + 1):
        cluster.add_host(f"box{number}", cpu_slots=1, wait=False)
    for number in range(hosts + 1):
        cluster.wait_host(f"box{number}", seconds=SECONDS)
    token = cluster.controller.token_file.read_text().strip()
    words = [
        "supervise",
        "-f",
        str(POLICIES / policy),
        "--hosts",
        str(hosts),
        "--cwd",
        str(tmp_path),
        "--",
        *args,
    ]
    with open(tmp_path / "said", "wb") as said:
        following = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "holdfast.cli",
                *words,
                "--",
                sys.executable,
                "-c",
                WORK,
                str(tmp_path),
            ],
            stdout=said,
            stderr=said,
            cwd=tmp_path,
            env=clean_environment(HOLDFAST_URL=cluster.controller.url, HOLDFAST_TOKEN=token),
        )

    def began(start: int) -> bool:
        return all((tmp_path / f"began-{start}-{rank}").exists() for rank in range(ranks))

    def tell() -> str:
        return (tmp_path / "said").read_text() + cluster.tell(job.id)

    wait_until(
        lambda: began(0), SECONDS, what=f"the first start: {(tmp_path / 'said').read_text()}"
    )
    (job,) = cluster.client.jobs()
    ran = [
        task.rank
        for task in cluster.client.tasks(job.id)
        if task.rank and is_working(cluster, job.id, task.rank)
    ]
    os.kill(find_first(job.id, ran[0]), signal.SIGKILL)
    try:
        wait_until(lambda: began(1), SECONDS)
        (tmp_path / "go").touch()
        assert following.wait(SECONDS) == 0
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise AssertionError(f"{error}\n{tell()}") from None
    finally:
        following.kill()
        following.wait()
    assert b"done after 1 restarts" in (tmp_path / "said").read_bytes()
    assert [attempt.number for attempt in cluster.client.attempts(job.id)] == [1]


def is_working(cluster: Cluster, job_id: str, rank: int) -> bool:
    """Whether a rank of the training runs on that rank's host: more than a manager and its
    warden."""
    from tests.system.supervisor.rig import find_descendants

    return len(find_descendants(find_first(job_id, rank))) >= 2
