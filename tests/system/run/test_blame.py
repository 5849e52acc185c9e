"""A host that fails what another passes is set aside with the evidence, and let back on probation
(BLAME-1…3, CHECK-1), with real hosts."""

from __future__ import annotations

import psycopg
import pytest

from holdfast.core.health.blame import PROBATION_SECONDS
from holdfast.core.states import HostState
from holdfast.store.postgres.connection.leadership import CHANNEL
from holdfast.wire.api import HostView
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow
ONLY_GOOD = '[ "$HOLDFAST_HOST_NAME" = good ]'
LOOK_SECONDS = 60.0


def show(cluster: Cluster, name: str) -> HostView:
    (host,) = [h for h in cluster.client.hosts() if h.name == name]
    return host


def wait_for(cluster: Cluster, state: HostState) -> HostView:
    """Have the loop look, which it does every 30 s, until the bad host is in this state."""
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:

        def look() -> bool:
            connection.execute("select pg_notify(%s, 'test health')", [CHANNEL])
            return show(cluster, "bad").state is state

        wait_until(
            look,
            LOOK_SECONDS,
            what=f"the bad host to be {state}: {cluster.controller.log()[-2000:]}",
        )
    return show(cluster, "bad")


def run_where_only_good_passes(cluster: Cluster, count: int) -> set[str]:
    """Have jobs fail on the bad host and succeed on the good one; their ids."""
    jobs = [
        cluster.submit("sh", "-c", ONLY_GOOD, retry={"max_retries": 50, "retry_delay": 0.2})
        for _ in range(count)
    ]
    failed = set()
    for job in jobs:
        cluster.until(job, "succeeded", seconds=60)
        if any(attempt.host == "bad" for attempt in cluster.client.attempts(job)):
            failed.add(job)
    return failed


def let_the_quarantine_pass(cluster: Cluster) -> float:
    """Make it as old as it is long; how long it was to be."""
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        row = connection.execute(
            "select extract(epoch from until - at)::float from host_asides where ended_at is null"
        ).fetchone()
        connection.execute("update host_asides set until = at where ended_at is null")
    assert row is not None
    return float(row[0])


def test_a_bad_host_is_set_aside_and_let_back_on_probation(cluster: Cluster) -> None:
    for name in ("bad", "good"):
        cluster.add_host(name, cpu_slots=4)
    failed: set[str] = set()
    while len(failed) < 3:
        failed |= run_where_only_good_passes(cluster, 6)
    host = wait_for(cluster, HostState.QUARANTINED)
    assert "failed here and then succeeded elsewhere" in host.reason
    assert any(job in host.reason for job in failed), "the evidence is named"
    assert show(cluster, "good").state is HostState.ACTIVE
    after = cluster.submit("sh", "-c", ONLY_GOOD)
    assert cluster.until(after, "succeeded").attempts == 1, "it is given no work"
    seconds = let_the_quarantine_pass(cluster)
    assert seconds == pytest.approx(PROBATION_SECONDS)

    host = wait_for(cluster, HostState.ACTIVE)
    assert host.reason == "on probation: one more failure counts"
    while not run_where_only_good_passes(cluster, 4):
        pass
    host = wait_for(cluster, HostState.QUARANTINED)
    assert let_the_quarantine_pass(cluster) == pytest.approx(2 * PROBATION_SECONDS)
    moved = [e.message for e in cluster.client.events(kinds=["host.moved"])]
    assert ["succeeded elsewhere" in message for message in moved] == [True, False, True]
