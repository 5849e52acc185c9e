"""The views that dashboards select from: their columns in the documented order, and what they say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from holdfast.store.postgres.store import PostgresStore
from tests.store.postgres import test_fleet as fleet
from tests.store.postgres.test_telemetry import GIB, gpu, write
from tests.store.rig import OK, Rig, fails

COLUMNS = {
    "fleet_status": "queued, spawning, active, terminating, total, health",
    "host_health": "host, heartbeat_age, task, vram_used, vram_total, vram_age, verdict",
    "host_performance": "host, done, failed, success_rate, mean_seconds, uptime",
}


@pytest.fixture
async def rig(pg_emptied: str) -> AsyncIterator[Rig]:
    """A rig on the database's own time, by which the views count ages."""
    store = PostgresStore(pg_emptied)
    await store.open()
    yield Rig(store, now=datetime.now(UTC))
    await store.close()


def select(dsn: str, view: str) -> list[tuple[Any, ...]]:
    """Every row of a view, as `select *` gives it; its columns are the documented ones."""
    with psycopg.connect(dsn) as connection:
        cursor = connection.execute(f"select * from {view} order by 1".encode())
        assert ", ".join(column.name for column in cursor.description or ()) == COLUMNS[view]
        return cursor.fetchall()


async def test_each_view_shows_a_day_of_a_host(rig: Rig, pg_emptied: str) -> None:
    assert select(pg_emptied, "fleet_status") == [(0, 0, 0, 0, 0, "ok")]
    for view in ("host_health", "host_performance"):
        assert select(pg_emptied, view) == []
    await rig.submit()
    assert select(pg_emptied, "fleet_status") == [(1, 0, 0, 0, 0, "waiting")]
    await fleet.made(rig, "host-bbbbbbbb", "m-2")
    host = await fleet.active(rig)
    assert select(pg_emptied, "fleet_status") == [(1, 1, 1, 0, 2, "ok")]
    (row,) = select(pg_emptied, "host_health")
    assert (row[0], row[2:6], row[6]) == ("p-aaaaaaaa", (None, None, None, None), "ok")

    await rig.admit()
    await rig.sync(host)
    _, key = await rig.running(host=host)
    await write(rig, gpu(0), gpu(1), host=host)
    (row,) = select(pg_emptied, "host_health")
    assert row[2] is not None
    assert (row[3], row[4], row[6]) == (2 * GIB, 160 * GIB, "ok")
    assert 0 <= row[1] < 60
    assert 0 <= row[5] < 60
    await rig.sync(host, ended=[(key, OK)])
    _, bad = await rig.running(host=host)
    await rig.sync(host, ended=[(bad, fails())])
    await rig.complete()
    rows = {row[0]: row[1:] for row in select(pg_emptied, "host_performance")}
    assert rows["p-aaaaaaaa"][:3] == (1, 1, 0.5)
    assert rows["p-aaaaaaaa"][3] is not None
    assert rows["p-bbbbbbbb"][:4] == (0, 0, None, None)

    await fleet_is_late(pg_emptied, host, telemetry=200, heartbeat=0)
    assert [row[6] for row in select(pg_emptied, "host_health")] == ["stale telemetry"]
    await fleet_is_late(pg_emptied, host, telemetry=200, heartbeat=400)
    assert [row[6] for row in select(pg_emptied, "host_health")] == ["silent"]
    await rig.store.fleet.want_end(host, "enough", now=rig.now)
    (status,) = select(pg_emptied, "fleet_status")
    assert status[3:5] == (1, 2)


async def fleet_is_late(dsn: str, host: str, *, telemetry: float, heartbeat: float) -> None:
    """Have the host's readings and its last call be so old."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for table, column, age in (
            ("host_telemetry", "at", telemetry), ("heartbeats", "heartbeat_at", heartbeat)
        ):  # fmt: skip
            connection.execute(
                f"update {table} set {column} = clock_timestamp() - make_interval(secs => %s) "
                "where host_id = %s".encode(),
                (age, host),
            )
