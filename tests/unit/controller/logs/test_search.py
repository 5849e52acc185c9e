"""`GET /v1/logs`: lines are found over jobs, ranks and attempts, and a search ends with its reader.
Its pages bound its memory (SEARCH-2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.controller.logs import pages
from holdfast.controller.runtime.turns import AT_ONCE
from holdfast.store.postgres.logs.search import LogSpan
from tests.unit.controller.api.test_api import Stream
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within


async def start(served: Served, agent: FakeAgent, **spec: Any) -> tuple[str, list[Any]]:
    job = await served.submit(**spec)
    async with within(20):
        while not (orders := (await agent.sync(wait=1.0)).launch):
            pass
    orders.sort(key=lambda order: order.key.rank)
    await agent.sync(*[agent.running(order) for order in orders])
    return job["id"], [order.key for order in orders]


async def search(served: Served, **query: Any) -> list[dict[str, Any]]:
    found = []
    async with Stream(served, "/v1/logs", params=query) as stream:
        while True:
            event = await stream.next()
            found.append(event["data"])
            if event["event"] == "end":
                return found


async def test_lines_of_all_jobs_and_ranks_are_found(served: Served, agent: FakeAgent) -> None:
    gang, keys = await start(served, agent, tasks=2, name="gang")
    other, (key,) = await start(served, agent, name="other")
    await agent.send_log(keys[0], b"fine\nNCCL tim")
    await agent.send_log(keys[0], b"eout \xff on 3\nfine\n", 13)
    await agent.send_log(keys[1], b"NCCL timeout on 4", ended=True, stream="stderr")
    await agent.send_log(key, b"all is well\nnccl TIMEOUT\n")

    *lines, end = await search(served, pattern="NCCL timeout.* on", job=gang)
    assert [(f["rank"], f["stream"], f["offset"], f["text"]) for f in lines] == [
        (0, "stdout", 5, "NCCL timeout � on 3"),
        (1, "stderr", 0, "NCCL timeout on 4"),
    ]
    assert lines[0]["text"][lines[0]["start"] : lines[0]["end"]] == "NCCL timeout � on"
    assert lines[0]["at"] is not None
    assert (end["matches"], end["jobs"], end["streams"], end["stopped"]) == (2, 1, 2, "")

    *lines, end = await search(served, pattern="nccl timeout", ignore_case="1")
    assert [f["job"] for f in lines] == [other, gang, gang], "the newest job comes first"
    *lines, end = await search(served, pattern="timeout", rank=1, project="default")
    assert [f["job"] for f in lines] == [gang]
    *lines, end = await search(served, pattern="i[m", fixed="1")
    assert (lines, end["matches"]) == ([], 0)
    *lines, end = await search(served, pattern="fine|well", context=1, max=2, stream="stdout")
    assert [(f["text"], f["match"]) for f in lines][:3] == [
        ("all is well", True),
        ("nccl TIMEOUT", False),
        ("fine", True),
    ]
    assert end["stopped"] == "max"
    *lines, end = await search(served, pattern="timeout", since=32_000_000_000)
    assert lines == []


async def test_a_search_that_cannot_be_is_refused(served: Served) -> None:
    for query, status, text in (
        ({"pattern": "a("}, 422, "missing )"),
        ({"pattern": ""}, 422, "pattern"),
        ({"pattern": "a", "max": "0"}, 422, "max"),
        ({"pattern": "a", "job": "06ch2v8wq1m4kz7d9x3t"}, 404, "there is no job"),
    ):
        answer = await served.call("GET", "/v1/logs", "read", params=query)
        assert (answer.status_code, text in answer.text) == (status, True), answer.text


async def test_a_search_ends_with_its_reader(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEARCH-1."""
    _, (key,) = await start(served, agent)
    for n in range(40):
        await agent.send_log(key, b"line %03d\n" % n, n * 9)
    monkeypatch.setattr(pages, "PAGE_BYTES", 9)
    reads, store = 0, served.store.log_search
    read_spans = store.read_spans

    async def read_slowly(spans: list[LogSpan]) -> Any:
        nonlocal reads
        reads += 1
        await asyncio.sleep(0.2)
        return await read_spans(spans)

    monkeypatch.setattr(store, "read_spans", read_slowly)
    async with Stream(served, "/v1/logs", params={"pattern": r"\d"}) as stream:
        assert (await stream.next())["data"]["text"] == "line 000"
    async with within(1):
        while served.controller.searches.free < AT_ONCE:
            await asyncio.sleep(0.01)
    seen = reads
    assert seen < 20
    await asyncio.sleep(0.5)
    assert reads == seen


async def test_error_lines_of_all_ranks_are_groups(served: Served, agent: FakeAgent) -> None:
    gang, keys = await start(served, agent, tasks=3, name="gang")
    for rank in (2, 0, 1):
        text = f"step {rank}\n[rank{rank}]: RuntimeError: NCCL timeout after {rank + 600} s\n"
        await agent.send_log(keys[rank], b"\xff fine\n" + text.encode(), stream="stderr")
    await agent.send_log(keys[1], b"x" * 40_000 + b"Error before\nValueError: \xfe\nerror of 1")
    items = (await served.call("GET", f"/v1/jobs/{gang}/errors", "read")).json()["items"]
    assert [(g["ranks"], g["first_rank"]) for g in items] == [(3, 2), (1, 1), (1, 1)]
    assert items[0]["text"] == "[rank2]: RuntimeError: NCCL timeout after 602 s"
    assert items[1]["text"] == "ValueError: �"
    assert all(g["first_at"] for g in items)
    assert (await served.call("GET", f"/v1/jobs/{gang}/errors?attempt=2", "read")).json()[
        "items"
    ] == []
