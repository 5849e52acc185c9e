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
            *"submit --fresh-workdir --max-retries 1 --retry-delay 0s --shell".split(), LEAVES
        )
        assert made.returncode == 0, made.stderr
        job = made.stdout.decode().split()[0]
    else:
        retry = {"max_retries": 1, "retry_delay": 0}
        job = cluster.submit(shell=LEAVES, retry=retry, fresh_workdir=way == "rest")
    cluster.until(job, "succeeded", seconds=60)
    said = [
        cluster.cli("logs", "-f", job, "--attempt", str(n)).stdout.decode().splitlines()
        for n in (1, 2)
    ]
    left = [lines[1:] for lines in said]
    if way == "shared":
        assert said[0][0] == said[1][0]
        assert left == [[], ["of-attempt-1"]]
    else:
        assert [Path(lines[0]).name for lines in said] == ["attempt-1", "attempt-2"]
        assert left == [[], []]


def test_each_attempt_and_rank_reads_the_input_from_its_start(cluster: Cluster) -> None:
    cluster.add_host("only", cpu_slots=2)
    (cluster.folder / "words").write_bytes(b"one\0two\n")
    # No rank fails before both have read, because the fall of one ends the other.
    line = (
        f"cat; echo $HOLDFAST_ATTEMPT; cd {cluster.folder}; touch read-$HOLDFAST_ATTEMPT-$RANK;"
        " while [ $(ls read-$HOLDFAST_ATTEMPT-* | wc -l) -lt 2 ]; do sleep 0.01; done;"
        " exit $((2 - HOLDFAST_ATTEMPT))"
    )
    retry = ("--tasks", "2", "--max-retries", "1", "--retry-delay", "0s")
    done = cluster.cli("submit", "--stdin", "words", *retry, "--shell", line)
    assert done.returncode == 0, done.stderr
    job = done.stdout.decode().split()[0]
    cluster.until(job, "succeeded", seconds=60)
    for attempt in (1, 2):
        for rank in (0, 1):
            words = ("-f", "--attempt", str(attempt), "--rank", str(rank))
            read = cluster.cli("logs", job, *words).stdout
            assert read == b"one\0two\n%d\n" % attempt, (attempt, rank)


def test_an_input_that_is_nowhere_keeps_its_job_from_starting_and_says_so(cluster: Cluster) -> None:
    cluster.add_host("only")
    job = cluster.submit(argv=["cat"], stdin="ab" * 32, retry={"max_retries": 0})
    cluster.until(job, "failed", seconds=60)
    assert "standard input cannot be had" in cluster.client.job(job).reason
