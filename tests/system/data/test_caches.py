"""Caches and mounts on real hosts."""

from __future__ import annotations

import pytest

from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow


def test_a_cache_stays_for_its_project_and_draws_its_next_job(cluster: Cluster) -> None:
    cluster.add_host("cold")
    first = cluster.submit(
        shell='echo "$HOLDFAST_CACHE_HF"; echo a > $HOLDFAST_CACHE_HF/w', caches=["hf"]
    )
    cluster.until(first, "succeeded", seconds=60)
    cluster.add_host("empty")
    client = cluster.client
    client.put_project("other", {})
    line = 'cat "$HOLDFAST_CACHE_HF/w"'
    for _ in range(4):  # the leader places the fullest first: by chance each would go elsewhere
        job = cluster.submit(shell=line, caches=["hf"])
        cluster.until(job, "succeeded", seconds=60)
        assert cluster.output(job) == b"a\n"
    other = cluster.submit(shell=f"! {line}", caches=["hf"], project="other")
    cluster.until(other, "succeeded", seconds=60)


def test_a_job_with_a_mount_waits_for_a_host_that_lists_it(cluster: Cluster) -> None:
    cluster.add_host("plain")
    job = cluster.submit(shell='cat "$HOLDFAST_MOUNT_DATA_SET/words"', mounts=["data-set"])
    wait_until(
        lambda: "holdfast agent --mount data-set=DIR" in cluster.cli("why", job).stdout.decode(), 20
    )
    data = cluster.folder / "data"
    data.mkdir()
    (data / "words").write_text("here\n")
    cluster.add_host("lists", mounts={"data-set": {"path": str(data)}})
    cluster.until(job, "succeeded", seconds=60)
    assert cluster.output(job) == b"here\n"
