"""A gang's log is followed to the end of every rank, also of one whose bytes come after the job's
end."""

from __future__ import annotations

import asyncio
import base64
from datetime import datetime

import pytest

from holdfast.controller.api import logs
from tests.unit.controller.api.test_api import Stream
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served, bearer
from tests.waits import within


async def test_a_rank_whose_output_comes_late_is_waited_for(
    served: Served, agent: FakeAgent
) -> None:
    job = await served.submit(tasks=2)
    async with within(20):
        while not (orders := (await agent.sync(wait=1.0)).launch):
            pass
    orders.sort(key=lambda order: order.key.rank)
    await agent.sync(*[agent.running(order) for order in orders])
    for stream in ("stdout", "stderr"):
        await agent.send_log(
            orders[0].key, b"first\n" if stream == "stdout" else b"", ended=True, stream=stream
        )
    for order in orders:
        await agent.end(order, exit_code=0)
    await served.until(job["id"], "succeeded")

    seen = b""
    headers = {**bearer(SECRETS["read"]), "Accept": "text/event-stream"}
    url = f"/v1/jobs/{job['id']}/logs"
    async with (
        within(30),
        served.http.stream("GET", url, params={"follow": 1}, headers=headers) as answer,
    ):
        async for data in answer.aiter_bytes():
            if b"event: log" in data and b'"rank":0' in data and b'"rank":1' not in seen:
                for stream in ("stdout", "stderr"):
                    late = b"second\n" if stream == "stdout" else b""
                    await agent.send_log(orders[1].key, late, ended=True, stream=stream)
            seen += data
    assert b'"rank":1' in seen, "the stream ended with the first rank's"
    assert seen.rstrip().splitlines()[-2] == b"event: end"


async def test_a_reader_of_a_whole_log_hears_of_the_end_at_once(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last bytes mostly come before the report of the end does."""
    monkeypatch.setattr(logs, "POLL_SECONDS", 1000.0)
    job = await served.submit()
    (order,) = (await agent.sync(wait=10.0)).launch
    await agent.sync(agent.running(order))
    for stream in ("stdout", "stderr"):
        await agent.send_log(order.key, b"", ended=True, stream=stream)
    async with Stream(served, f"/v1/jobs/{job['id']}/logs", params={"follow": "1"}) as stream:
        assert (await stream.next())["event"] == "state"
        await asyncio.sleep(0.3)  # the reader has read all that there is, and waits
        await agent.end(order, exit_code=0)
        while (await stream.next(30))["event"] != "end":
            pass


async def test_ranks_are_sent_by_time(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FOLLOW-4."""
    job = await served.submit(tasks=3)
    async with within(20):
        while not (orders := (await agent.sync(wait=1.0)).launch):
            pass
    orders.sort(key=lambda order: order.key.rank)
    await agent.sync(*[agent.running(order) for order in orders])
    sent, sizes = [], [0, 0, 0]
    for n, rank in enumerate([2, 0, 2, 1, 0, 0, 2, 1, 1, 0, 2]):
        data = b"line %d\n" % n
        await agent.send_log(orders[rank].key, data, sizes[rank])
        sizes[rank] += len(data)
        sent.append((rank, data.decode()))
    monkeypatch.setattr(logs, "PAGE_BYTES", 20)
    for most in (8192, 6):
        monkeypatch.setattr(logs, "KEYS_AT_ONCE", most)
        monkeypatch.setattr(logs, "MIN_KEYS", 2)
        seen = []
        async with Stream(served, f"/v1/jobs/{job['id']}/logs", params={"events": "1"}) as stream:
            while (event := await stream.next())["event"] != "end":
                if event["event"] == "log":
                    line = event["data"]
                    seen.append((line["rank"], base64.b64decode(line["data"]).decode()))
        assert seen == sent


async def test_a_window_in_time_is_sent_whole_and_alone(served: Served, agent: FakeAgent) -> None:
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    size = 0
    for n in range(6):
        data = b"line %d\n" % n
        await agent.send_log(order.key, data, size)
        size += len(data)

    async def read(**window: int) -> list[tuple[str, int]]:
        params = {"events": "1", **{name: str(value) for name, value in window.items()}}
        found = []
        async with Stream(served, f"/v1/jobs/{job['id']}/logs", params=params) as stream:
            while (event := await stream.next())["event"] != "end":
                if event["event"] == "log":
                    line = event["data"]
                    at = round(datetime.fromisoformat(line["at"]).timestamp() * 1e6)
                    found.append((base64.b64decode(line["data"]).decode(), at))
        return found

    whole = await read()
    times = [at for _, at in whole]
    assert await read(begin_us=times[2], until_us=times[4]) == whole[2:5]
    assert await read(until_us=times[3]) == whole[:4]
    assert await read(until_us=times[3], tail=14) == whole[2:4]
    assert await read(begin_us=times[5] + 1) == []
    assert await read(until_us=times[0] - 1) == []
    refused = await served.call("GET", f"/v1/jobs/{job['id']}/logs?begin_us=1&follow=1", "read")
    assert refused.status_code == 422, refused.text
