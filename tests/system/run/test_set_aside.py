"""A host that cannot start anything sets itself aside, and no job waits for it (ASIDE-1…3)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.cluster import Cluster
from tests.system.small_disk import SmallDisk, disk
from tests.waits import Patience, wait_until

pytestmark = pytest.mark.slow
__all__ = ["disk"]


def test_a_job_waits_for_the_busy_host_and_not_for_the_full_one(
    disk: SmallDisk, cluster: Cluster, tmp_path: Path
) -> None:
    """It fails on the full host once, is charged no wait, and runs when the other host is free."""
    cluster.add_host("full", state_dir=str(disk.path / "state"), cpu_slots=1)
    disk.fill()
    cluster.client.act_on_host("full", "drain")
    cluster.add_host("busy", cpu_slots=1)
    go = tmp_path / "go"
    busy = cluster.submit("sh", "-c", f"while ! [ -e {go} ]; do sleep 0.05; done")
    cluster.until(busy, "running")
    cluster.client.act_on_host("full", "undrain")
    job = cluster.submit("true")
    found = wait_until(
        lambda: [h for h in cluster.client.hosts() if h.name == "full" and h.faults],
        what="the full host to set itself aside",
    )[0]
    assert found.faults[0].part == "starts"
    assert "No space left" in found.faults[0].reason
    wait_until(lambda: cluster.client.job(job).start_failures == 1)
    patience = Patience(50)
    waiting = cluster.until(job, "queued")
    assert (waiting.start_failures, waiting.retry_at) == (1, None)
    lines = {line.code: line.message for line in cluster.client.why(job).lines}
    assert "host full is set aside" in lines["host_set_aside"]
    assert "no_room" in lines
    go.touch()
    done = cluster.until(job, "succeeded")
    assert not patience.over, "it waited for a back-off"
    assert done.attempts == 2
    assert [a.host for a in cluster.client.attempts(job)] == ["full", "busy"]
    disk.free()
    wait_until(
        lambda: not [h for h in cluster.client.hosts() if h.faults],
        seconds=60,
        what="the host to serve again",
    )
    kinds = [e.kind for e in cluster.client.events() if e.kind in ("host.faulty", "host.able")]
    assert sorted(kinds) == ["host.able", "host.faulty"]
