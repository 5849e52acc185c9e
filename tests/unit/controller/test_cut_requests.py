"""A request that is cut off at any of its awaits, as its client's leaving or a deadline cuts it, harms
no request after it (CUT-1…3)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from holdfast.controller.app import App
from holdfast.wire import agent as wire
from tests.store.cuts import cut, look_at
from tests.unit.controller.conftest import SECRETS, FakeAgent, Served

CUTS = 12
"""Cuts of each request, at its first awaits; a stream that waits is cut after a second."""


def request(
    app: App, method: str, path: str, secret: str, body: bytes = b"", query: str = ""
) -> Coroutine[Any, Any, None]:
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method,
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {secret}".encode()), (b"content-type", b"application/json")],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        if pieces:
            return pieces.pop()
        await asyncio.Event().wait()  # the client stays

    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    return app(scope, receive, send)


REQUESTS = [
    ("GET", "/v1/jobs", "", b""),
    ("GET", "/v1/jobs/JOB", "", b""),
    ("GET", "/v1/jobs/JOB/why", "", b""),
    ("GET", "/v1/hosts", "", b""),
    ("POST", "/v1/jobs", "", b'{"argv": ["true"]}'),
    ("GET", "/v1/events", "follow=1", b""),
    ("GET", "/v1/jobs/JOB/logs", "follow=1", b""),
    ("POST", "/v1/agent/sync", "", b"sync"),
]


async def test_each_await_of_a_request_may_be_cut(served: Served, agent: FakeAgent) -> None:
    app = App(served.controller)
    job = (await served.submit())["id"]
    sync = wire.encode(wire.SyncRequest(incarnation=agent.incarnation, seq=1, settings_rev=1))
    new = await look_at(served.store.session)
    for method, path, query, body in REQUESTS:
        secret, sent = (agent.key, sync) if body == b"sync" else (SECRETS["admin"], body)
        cuts = 0
        for number in range(1, CUTS + 1):
            work = request(app, method, path.replace("JOB", job), secret, sent, query)
            cuts += await cut(work, number, seconds=1)
            assert await look_at(served.store.session) == new, (path, number)
        assert cuts, path
    assert (await served.job(job))["id"] == job
