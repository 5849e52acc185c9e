"""What attempts of a job leave for each other on a host: their folder, unless they ask for a fresh one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.cluster import Cluster

LEAVES = """
pwd
ls
test "$PWD" = "$HOLDFAST_WORK" || echo "not in $HOLDFAST_WORK"
touch "of-attempt-$HOLDFAST_ATTEMPT"
test "$HOLDFAST_ATTEMPT" = 2
"""


@pytest.mark.parametrize("way", ["cli", "rest", "shared"])
def test_attempts_share_a_folder_unless_each_has_its_own(cluster: Cluster, way: str) -> None:
    cluster.add_host("only")
    if way == "cli":
        made = cluster.cli(
            "submit",
            "--fresh-workdir",
            "--max-retries",
            "1",
            "--retry-delay",
            "0s",
            "--shell",
            LEAVES,
        )
        assert made.returncode == 0, made.stderr
        job = made.stdout.decode().split()[0]
    else:
        retry = {"max_retries": 1, "retry_delay": 0}
        job = cluster.submit(shell=LEAVES, retry=retry, fresh_workdir=way == "rest")
    cluster.until(job, "succeeded", seconds=60)
    said = [
        cluster.cli("logs", job, "--attempt", str(n)).stdout.decode().splitlines() for n in (1, 2)
    ]
    left = [lines[1:] for lines in said]
    if way == "shared":
        assert said[0][0] == said[1][0]
        assert left == [[], ["of-attempt-1"]]
    else:
        assert [Path(lines[0]).name for lines in said] == ["attempt-1", "attempt-2"]
        assert left == [[], []]
