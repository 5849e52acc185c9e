"""A rented machine dies without a word: its provider's word frees its gang, and not the lease."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from holdfast.core.causes import Cause
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow


def test_a_gang_goes_on_elsewhere_once_the_provider_says_that_the_machine_is_gone(
    cluster: Cluster, tmp_path: Path
) -> None:
    """ASK-1: the next poll is an hour away, and the lease lasts for minutes."""
    client, folder = cluster.client, tmp_path / "machines"
    pool = {
        "provider": "local",
        "config": {"folder": str(folder), "grace_seconds": 2},
        "offers": [{"name": "one"}],
        "min": 2,
        "max": 3,
        "checks": {"enabled": False},
    }
    client.put_pool("p", pool | {"poll_seconds": 1})
    try:
        wait_until(
            lambda: sum(host.state == "active" for host in client.hosts()) == 2,
            60,
            what="two hosts",
        )
        client.put_pool("p", pool | {"poll_seconds": 3600})
        job = cluster.submit("sleep", "600", tasks=2, lease_ttl_seconds=300)
        cluster.until(job, "running", seconds=30)
        wait_until(
            lambda: all(task.started_at for task in client.tasks(job)), 30, what="both ranks"
        )
        victim = client.tasks(job)[1].host_id
        assert victim is not None
        (place,) = folder.glob(f"*/{victim}/process")
        os.kill(int(place.read_text().split()[0]), signal.SIGKILL)
        wait_until(
            lambda: any(a.cause is not None for a in client.attempts(job)), 90, what="the first end"
        )
        (first,) = [attempt for attempt in client.attempts(job) if attempt.number == 1]
        assert first.cause is Cause.AGENT_TRANSIENT
        assert "it is gone for good: its process ended" in first.reason
    finally:
        for left in [found for found in client.jobs() if not found.state.terminal]:
            client.cancel(left.id, hard=True)
        client.put_pool("p", pool | {"poll_seconds": 1})
        client.delete_pool("p")
        wait_until(lambda: client.pools() == [], 60, what="the pool to be gone")
