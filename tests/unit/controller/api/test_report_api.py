"""Reports over the real wire, by the client."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import httpx
import msgspec

from holdfast.client import AsyncClient
from holdfast.core.report.idle import IdleGpus
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served, gpu


async def test_a_report_of_a_young_cluster_is_empty_and_whole(served: Served) -> None:
    async with AsyncClient(served.url, SECRETS["read"]) as client:
        found = await client.report(by=["owner", "time"], step="hour", labels={"team": "a"})
    assert (found.rows, found.losses, found.total.hours) == ((), (), 0.0)
    assert found.by == ("owner", "time")
    assert (found.until - found.since).days == 7


async def test_what_no_report_has_is_refused_in_words(served: Served) -> None:
    async def ask(query: str) -> httpx.Response:
        return await served.call("GET", f"/v1/report?{query}", "read")

    for query, words in (
        ("by=colour", "no field 'colour'"),
        ("by=owner&by=owner", "named once"),
        ("since=20&until=10", "begins before it ends"),
        ("sise=gpu", "sise"),
    ):
        answer = await ask(query)
        assert answer.status_code == 422, answer.text
        assert words in answer.json()["detail"]


async def test_idle_jobs_are_listed_by_project_and_owner(served: Served) -> None:
    agent = FakeAgent(served, gpus=(gpu(0),))
    await agent.register()
    job = await served.submit(gpus=1, name="sweep")
    order = await agent.take()
    await agent.sync(agent.running(order))
    await served.until(job["id"], "running")
    running = await served.job(job["id"])
    idle = IdleGpus(
        job_id=job["id"],
        epoch=running["epoch"],
        gpus=1,
        since=datetime(2026, 3, 1, 12, tzinfo=UTC),
        seen_at=datetime(2026, 3, 1, 13, tzinfo=UTC),
        usd_per_hour=2.0,
    )
    await served.store.money.write_idle_gpus([idle])
    async with AsyncClient(served.url, SECRETS["read"]) as client:
        (found,) = await client.idle_jobs(project="default")
        assert (found.name, found.idle_seconds, found.usd) == ("sweep", 3600.0, 2.0)
        assert await client.idle_jobs(project="other") == []
        assert await client.idle_jobs(owner="nobody-here") == []
        shortly = idle.since + timedelta(minutes=1)
        for told_at, listed in ((None, 0), (shortly, 1)):
            now = msgspec.structs.replace(idle, seen_at=shortly, told_at=told_at)
            await served.store.money.write_idle_gpus([now])
            assert len(await client.idle_jobs()) == listed
