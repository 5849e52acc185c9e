"""The ledger of real hosts whose controller and agents are killed: it sums to the leased and the
offered time exactly (LEDGER-1, LEDGER-2)."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from holdfast.core.ledger.close_minutes import close_span, to_ms
from holdfast.core.ledger.values import Unit
from holdfast.store.postgres.store import PostgresStore
from tests.system.cluster import Cluster
from tests.waits import wait_until

pytestmark = pytest.mark.slow

# Beats each step, saves, waits, and dies at step 20 of its first attempt; the next begins at step 1.
LOSER = """
import os, time, holdfast
for step in range(1, 30):
    time.sleep(0.05)
    holdfast.beat(step)
    if step % 10 == 0:
        with holdfast.section("checkpoint"):
            time.sleep(0.2)
    if step == 20 and os.environ["HOLDFAST_ATTEMPT"] == "1":
        os._exit(1)
"""
LEASES = "select job_id, number, reserved_at, ended_at, members from attempts"
OFFERED = """
select name, floor(extract(epoch from registered_at) * 1000)::bigint, cpu_slots, jsonb_array_length(gpus) from hosts
"""


async def read_sums(store: PostgresStore, by: str, unit: Unit) -> dict[str, dict[str, int]]:
    now = datetime.now(UTC)
    day = timedelta(days=1)
    found = await store.ledger.read_sums(now - day, now + day, by=[by], unit=unit)
    return {s.key[0]: {str(n): ms for n, ms in s.ms.items()} for s in found}


async def close_all(dsn: str) -> tuple[dict[str, Any], int]:
    """Close the minute in which the run ended, as the next leader would; return the sums by job
    and host, and the instant up to which the ledger is written."""
    store = PostgresStore(dsn)
    await store.open()
    until = 0
    while (
        facts := await store.ledger.read_span(now=datetime.now(UTC) + timedelta(minutes=2))
    ) is not None:
        await store.ledger.write_ledger(facts, close_span(facts))
        until = facts.until_ms
    units: tuple[Unit, Unit] = ("gpu", "cpu")
    sums = {
        f"{by} {unit}": await read_sums(store, by, unit) for by in ("job", "host") for unit in units
    }
    await store.close()
    return sums, until


def test_the_ledger_of_a_run_with_kills_sums_to_the_leased_and_the_offered_time(
    cluster: Cluster,
) -> None:
    host = cluster.add_host("h", cpu_slots=4)
    loser = cluster.submit(
        sys.executable, "-c", LOSER, retry={"max_retries": 1, "retry_delay": 0.0}
    )
    sleeper = cluster.submit("sleep", "6")
    cluster.until(sleeper, "running")
    first = host.kill_agent()
    wait_until(lambda: host.agent_pid() not in (0, first), 30, what="another agent")
    os.kill(cluster.controller.pid, signal.SIGKILL)
    time.sleep(0.5)
    cluster.controller.start()
    brief = cluster.submit("/bin/true")
    for job in (loser, sleeper, brief):
        cluster.until(job, "succeeded", seconds=40)
    (drained,) = (e.at for e in cluster.client.events(job_id=loser) if e.kind == "job.draining")
    cluster.controller.kill(signal.SIGKILL)

    sums, until = asyncio.run(close_all(cluster.dsn))
    with psycopg.connect(cluster.dsn) as conn:
        leases = conn.execute(LEASES).fetchall()
        offered = conn.execute(OFFERED).fetchall()
    leased: Counter[str] = Counter()
    for job, number, begun, ended, members in leases:
        if (job, number) == (loser, 1):  # its device was free when its task had ended
            ago = members[0]["facts"]["ended_ago_seconds"]
            ended = drained - timedelta(seconds=ago)
        leased[job] += to_ms(ended) - to_ms(begun)
    found: Counter[str] = Counter()
    for unit in ("gpu", "cpu"):
        for job, ms in sums[f"job {unit}"].items():
            found[job] += sum(ms.values())
    del found[""]
    assert found == leased
    for name, begun, slots, gpus in offered:
        assert sum(sums["host cpu"][name].values()) == (until - begun) * slots
        assert sum(sums["host gpu"].get(name, {}).values()) == (until - begun) * gpus
    kept = sums["job cpu"][loser]
    assert kept["lost"] > 500, "20 steps of the first attempt were done again"
    assert kept["checkpointing"] > 500, "four saves of 0.2 s, of which one was in vain"
    assert kept["kept"] > 1000
    assert set(sums["job cpu"][sleeper]) == {"setting_up", "unmeasured_busy"}
