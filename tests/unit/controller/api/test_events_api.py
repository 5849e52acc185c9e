"""A stream of events says where the history has taken some of what comes after its reader's place."""

from __future__ import annotations

from datetime import timedelta

from tests.unit.controller.conftest import SECRETS, Served, bearer, decode_json
from tests.waits import within


async def read_first(served: Served, after: str) -> dict[str, object]:
    headers = {
        **bearer(SECRETS["read"]), "Accept": "text/event-stream", "Last-Event-ID": after,
    }  # fmt: skip
    stream = served.http.stream("GET", "/v1/events", headers=headers)
    async with within(20), stream as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data:"):
                found: dict[str, object] = decode_json(line[5:].encode())
                return found
    raise AssertionError("the stream ended")


async def test_a_stream_resumed_at_an_event_before_the_history_says_so(served: Served) -> None:
    """It went on without a word, though no loss is promised."""
    await served.call("POST", "/v1/queues/cpu/pause", json={})
    first = await served.submit()
    events = (await served.call("GET", f"/v1/events?job={first['id']}")).json()["items"]
    seen = events[-1]["id"]
    second = await served.submit()
    await served.call("POST", f"/v1/jobs/{second['id']}/cancel", json={})
    now = await served.store.now()
    assert await served.store.jobs.prune(1.0, now=now + timedelta(days=2)) == 1
    told = await read_first(served, seen)
    assert (told["kind"], told["id"]) == ("events.pruned", seen)
    assert "deleted with the history" in str(told["message"])
    await served.submit()
    newest = (await served.call("GET", "/v1/events?tail=1")).json()["items"][-1]["id"]
    await served.submit()
    assert (await read_first(served, newest))["kind"] == "job.submitted", "nothing was lost since"
