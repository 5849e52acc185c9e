"""Hundreds of jobs that fail at once, over PostgreSQL: the API goes on answering, and their retries
come back spread out."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import datetime
from typing import Any

import pytest

from holdfast.core.facts import TaskFacts
from holdfast.wire.agent import LaunchOrder, TaskReport
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within

JOBS = 300
# By themselves the retries would come at 150 a second, for two seconds.
DELAY, RATIO, RATE = 2.0, 1.0, 40


async def take_all(agent: FakeAgent, known: set[tuple[str, int]], count: int) -> list[LaunchOrder]:
    """Every launch order of one more attempt of `count` jobs."""
    found: list[LaunchOrder] = []
    async with within(90):
        while len(found) < count:
            live = [TaskReport(key=order.key, state="running", pid=1) for order in found]
            for order in (await agent.sync(*live, wait=1.0)).launch:
                key = (order.key.job_id, order.key.epoch)
                if key not in known:
                    known.add(key)
                    found.append(order)
    return found


async def end_all(agent: FakeAgent, orders: list[LaunchOrder], facts: TaskFacts) -> None:
    answer = await agent.sync(
        *(TaskReport(key=order.key, state="ended", facts=facts) for order in orders)
    )
    assert len(answer.acked) == len(orders)


async def ask_on(served: Served, job_id: str, stop: asyncio.Event) -> Counter[int]:
    """Ask the API as users do, until told to stop; how often it answered what."""
    answers: Counter[int] = Counter()
    while not stop.is_set():
        for path in (
            f"/v1/jobs/{job_id}",
            f"/v1/jobs/{job_id}/why",
            "/v1/jobs?state=waiting&limit=50",
            "/metrics",
        ):
            answers[(await served.call("GET", path)).status_code] += 1
        await asyncio.sleep(0.05)
    return answers


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.mark.slow
async def test_a_storm_is_answered_spread_and_dispatched_once(served: Served) -> None:
    await served.call("PATCH", "/v1/config", json={"set": {"retry_rate_limit": RATE}})
    agent = FakeAgent(served, "big", cpu_slots=JOBS, memory_bytes=1 << 44)
    await agent.register()
    retry = {"max_retries": 1, "retry_delay": DELAY, "jitter": "random", "jitter_ratio": RATIO}
    page = await served.call(
        "POST", "/v1/jobs/batch", json={"jobs": [{"argv": ["x"], "retry": retry}] * JOBS}
    )
    ids = [job["id"] for job in page.json()["items"]]
    known: set[tuple[str, int]] = set()
    first = await take_all(agent, known, JOBS)
    stop = asyncio.Event()
    asking = asyncio.create_task(ask_on(served, ids[0], stop))
    try:
        await end_all(agent, first, TaskFacts(exit_code=1))
        second = await take_all(agent, known, JOBS)
        await end_all(agent, second, TaskFacts(exit_code=0))
    finally:
        stop.set()
    answers = await asking
    assert answers.keys() == {200}, "the API went on answering"
    assert answers[200] > 20
    events = await every_event(served, "job.retry_*")
    kinds = Counter(event["kind"] for event in events)
    assert kinds == {f"job.retry_{kind}": JOBS for kind in ("scheduled", "dispatched", "succeeded")}
    dispatched = [event for event in events if event["kind"] == "job.retry_dispatched"]
    assert len({event["job_id"] for event in dispatched}) == JOBS
    delays = sorted(
        moment(event["data"]["due_at"]) - moment(event["at"])
        for event in events
        if event["kind"] == "job.retry_scheduled"
    )
    assert delays[0] >= DELAY - 0.01
    assert delays[-1] <= DELAY * (1 + RATIO) + 0.01
    quarters = Counter(int((delay - DELAY) / (DELAY * RATIO) * 4) for delay in delays)
    assert min(quarters[n] for n in range(4)) > JOBS / 8, (
        "uniform jitter puts a quarter of them in each quarter"
    )
    assert all(event["data"]["waited_seconds"] >= 0 for event in dispatched)
    times = sorted(moment(event["at"]) for event in dispatched)
    for n, began in enumerate(
        times
    ):  # RATE-1, seen from outside; a transaction's time is not the bucket's, hence the slack
        in_two_seconds = sum(1 for at in times[n:] if at < began + 2.0)
        assert in_two_seconds <= RATE * 2 + RATE + RATE, "no faster than the rate limit"


async def every_event(served: Served, kind: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: dict[str, str] = {}
    while True:
        page = (
            await served.call("GET", "/v1/events", params={"kind": kind, "limit": 1000, **after})
        ).json()
        found += page["items"]
        if not page["items"] or page["next"] is None:
            return found
        after = {"after": page["next"]}
