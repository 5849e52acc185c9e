"""Work that ends while no renewal can be written has ended, and runs once (LEASE-6, LATE-1)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.system.cluster import MARGIN, TTL, Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow
WAITS = '[ "$HOLDFAST_RANK" = 0 ] || until [ -e {0}/go ]; do sleep 0.2; done; touch {0}/$0$HOLDFAST_RANK'
ALONE = "until [ -e {0}/go ]; do sleep 0.2; done; touch {0}/$0"


@contextmanager
def lock_a_table(cluster: Cluster) -> Iterator[None]:
    """As VACUUM FULL and ALTER TABLE do."""
    with psycopg.connect(cluster.dsn) as conn:
        conn.execute("lock table jobs in access exclusive mode")
        yield
        conn.rollback()


@contextmanager
def stop_the_servers(cluster: Cluster) -> Iterator[None]:
    pids = [controller.pid for controller in cluster.controllers]
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("deafen", [lock_a_table, stop_the_servers])
def test_work_that_ends_while_no_renewal_can_be_written_runs_once(
    cluster: Cluster, deafen: Callable[[Cluster], AbstractContextManager[None]], tmp_path: Path
) -> None:
    """The host speaks with the server that does not lead, and no lease would have lasted."""
    cluster.controller.wait_lead()
    standby = cluster.add_controller()
    cluster.add_host("h", url=standby.url, cpu_slots=4)
    shell = ("/bin/sh", "-c")
    plain = [
        cluster.submit(*shell, ALONE.format(tmp_path), f"p{n}", lease_ttl=TTL) for n in range(2)
    ]
    gang = cluster.submit(*shell, WAITS.format(tmp_path), "g", tasks=2, lease_ttl=TTL)
    for job in (*plain, gang):
        cluster.until(job, "running")
    wait_until(lambda: (tmp_path / "g0").exists(), what="the end of the gang's first rank")
    with deafen(cluster):
        (tmp_path / "go").touch()
        time.sleep(TTL + MARGIN + 8.0)
        assert all((tmp_path / name).exists() for name in ("p0", "p1", "g1"))
    for job in (*plain, gang):
        found = cluster.until(job, "succeeded", seconds=60)
        assert (found.attempts, found.infra_charged) == (1, 0), cluster.tell(job)
