"""A host that fails what another passes is set aside with the evidence, and let back on probation
(BLAME-1…3, CHECK-1), with real hosts."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from holdfast.core.health.blame import PROBATION_SECONDS, WINDOW_SECONDS, HostStanding, judge_hosts
from holdfast.core.states import HostState
from holdfast.store.postgres.connection.leadership import CHANNEL
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.api import HostView
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow
ONLY_GOOD = ('[ "$HOLDFAST_HOST_NAME" = good ]', 'test "$HOLDFAST_HOST_NAME" = good')
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


def run_where_only_good_passes(cluster: Cluster, program: str) -> set[str]:
    """Have two jobs of a program fail on the bad host and succeed on the good one; their ids."""
    failed: set[str] = set()
    while len(failed) < 2:
        jobs = [
            cluster.submit("sh", "-c", program, retry={"max_retries": 50, "retry_delay": 0.2})
            for _ in range(4)
        ]
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
    failed = {job for one in ONLY_GOOD for job in run_where_only_good_passes(cluster, one)}
    host = wait_for(cluster, HostState.QUARANTINED)
    assert "failed here and then succeeded elsewhere" in host.reason
    assert any(job in host.reason for job in failed), "the evidence is named"
    assert show(cluster, "good").state is HostState.ACTIVE
    after = cluster.submit("sh", "-c", ONLY_GOOD[0])
    assert cluster.until(after, "succeeded").attempts == 1, "it is given no work"
    seconds = let_the_quarantine_pass(cluster)
    assert seconds == pytest.approx(PROBATION_SECONDS)

    host = wait_for(cluster, HostState.ACTIVE)
    assert host.reason == "on probation: one more program that fails here alone counts"
    run_where_only_good_passes(cluster, ONLY_GOOD[1])
    host = wait_for(cluster, HostState.QUARANTINED)
    assert let_the_quarantine_pass(cluster) == pytest.approx(2 * PROBATION_SECONDS)
    moved = [e.message for e in cluster.client.events(kinds=["host.moved"])]
    assert ["succeeded elsewhere" in message for message in moved] == [True, False, True]


def test_a_flaky_script_sets_no_host_aside(cluster: Cluster) -> None:
    """BLAME-1: forty jobs of two scripts that fail on their first attempt and pass on their second."""
    for number in range(4):
        cluster.add_host(f"h{number}", cpu_slots=4)
    flaky = ("[ $HOLDFAST_ATTEMPT -gt 1 ]", "test $HOLDFAST_ATTEMPT != 1")
    jobs = [
        cluster.submit("sh", "-c", flaky[n % 2], retry={"max_retries": 3, "retry_delay": 0.2})
        for n in range(40)
    ]
    for job in jobs:
        cluster.until(job, "succeeded", seconds=60)
    told = "select coalesce(sum(failed), 0) from host_ends"
    with psycopg.connect(cluster.dsn, autocommit=True) as connection:
        wait_until(lambda: connection.execute(told).fetchone() == (40,), LOOK_SECONDS)
    standings = asyncio.run(read_standings(cluster.dsn))
    assert sum(len(standing.jobs) for standing in standings) > 10, "many passed on another host"
    assert judge_hosts(standings) == []
    assert {host.state for host in cluster.client.hosts()} == {HostState.ACTIVE}


async def read_standings(dsn: str) -> list[HostStanding]:
    store = PostgresStore(dsn)
    await store.open()
    try:
        return await store.health.read_standings(WINDOW_SECONDS)
    finally:
        await store.close()
