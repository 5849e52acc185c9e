"""Work that ends while no renewal can be written has ended, and runs once (LEASE-6, LATE-1)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest

from holdfast.store.embedded.postgres import EmbeddedPostgres
from tests.store.pg_fixture import EMPTIER, FAST_SETTINGS
from tests.system.cluster import MARGIN, TTL, Cluster
from tests.system.small_disk import mount_small_disk
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
def take_no_writes(cluster: Cluster) -> Iterator[None]:
    """As a failover does to the sessions of a server that writes no more: they end, and new ones may
    only read. Those stay so when the server takes writes again."""
    with psycopg.connect(cluster.dsn, autocommit=True) as conn:
        name = conn.info.dbname
        conn.execute(f"alter database {name} set default_transaction_read_only = on")
        conn.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid() and application_name <> %s",
            [EMPTIER],
        )
        try:
            yield
            (silent,) = conn.execute(
                "select extract(epoch from clock_timestamp() - max(until)) from renewal_spells"
            ).fetchone() or (0,)
            assert silent > TTL, "no renewal was written meanwhile"
        finally:
            conn.execute("set default_transaction_read_only = off")
            conn.execute(f"alter database {name} reset default_transaction_read_only")


@contextmanager
def kill_the_leader_behind_a_lock(cluster: Cluster) -> Iterator[None]:
    with lock_a_table(cluster):
        cluster.controller.kill()
        yield
    cluster.controller.start()


@contextmanager
def stop_the_leader(cluster: Cluster) -> Iterator[None]:
    with stop(cluster.controller.pid):
        yield


@contextmanager
def stop_the_servers(cluster: Cluster) -> Iterator[None]:
    with stop(*(controller.pid for controller in cluster.controllers)):
        yield


@contextmanager
def stop(*pids: int) -> Iterator[None]:
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


Deafen = Callable[[Cluster], AbstractContextManager[None]]
DEAFENED: list[Deafen] = [
    lock_a_table,
    stop_the_servers,
    take_no_writes,
    stop_the_leader,
    kill_the_leader_behind_a_lock,
]


@pytest.mark.parametrize("deafen", DEAFENED)
def test_work_that_ends_while_no_renewal_can_be_written_runs_once(
    cluster: Cluster, deafen: Deafen, tmp_path: Path
) -> None:
    check_that_work_runs_once(cluster, deafen, tmp_path)


def test_work_that_ends_while_the_databases_disk_is_full_runs_once(
    memory_path: Path, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(mount_small_disk(memory_path, "256m"))
        settings = {**FAST_SETTINGS, "min_wal_size": "32MB", "max_wal_size": "64MB"}
        server = EmbeddedPostgres(disk.path / "pg", settings=settings)
        server.start()
        stack.callback(server.stop)
        cluster = Cluster(tmp_path, server.dsn())
        stack.callback(cluster.close)
        cluster.add_controller()

        @contextmanager
        def fill_the_disk(cluster: Cluster) -> Iterator[None]:
            disk.fill()
            try:
                yield
            finally:
                disk.free()
                if server.pid is None:
                    server.start()

        check_that_work_runs_once(cluster, fill_the_disk, tmp_path)


def check_that_work_runs_once(cluster: Cluster, deafen: Deafen, tmp_path: Path) -> None:
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
    assert [host.state for host in cluster.client.hosts()] == ["active"]
