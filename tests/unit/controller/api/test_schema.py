"""schemathesis against the running API: every request that it makes up gets an answer that the
description promises."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator

import pytest
import requests

from holdfast.controller.openapi import build_openapi
from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.server import RunningServer, bind_socket
from holdfast.store.postgres.store import PostgresStore
from tests.simulated.blobs import MemoryBlobs
from tests.unit.controller.conftest import SECRETS, add_tokens, bearer

# Streams never end by themselves, and the agents' routes want a host's key: test_sync has both.
COVERED = re.compile(r"/(?!v1/agent)(v1|healthz|readyz)")
LABELS = [
    f"{method.upper()} {path}"
    for path, methods in build_openapi(ENDPOINTS)["paths"].items()
    if COVERED.match(path)
    for method in methods
]


@pytest.fixture(scope="module")
def url(pg_server, pg_template) -> Iterator[str]:
    """A server in a thread of its own: the made-up calls are synchronous."""
    name = pg_server.create_database(pg_template)
    dsn = pg_server.dsn_of(name)
    ready, found = threading.Event(), {}

    async def run() -> None:
        store = PostgresStore(dsn)
        await store.open()
        await add_tokens(store)
        running = RunningServer(store, bind_socket("127.0.0.1", 0), blobs=MemoryBlobs())
        await running.start()
        found.update(url=running.url, stop=asyncio.Event(), loop=asyncio.get_running_loop())
        ready.set()
        await found["stop"].wait()
        await running.stop()
        await store.close()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert ready.wait(20)
    yield found["url"]
    found["loop"].call_soon_threadsafe(found["stop"].set)
    thread.join(10)
    assert not thread.is_alive()
    pg_server.drop_database(name)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Connections that are kept, and no look for a proxy in the environment at each call."""
    with requests.Session() as kept:
        kept.trust_env = False
        yield kept


@pytest.mark.slow
@pytest.mark.parametrize("label", LABELS)
def test_the_api_keeps_its_description(label: str, url: str, session: requests.Session) -> None:
    from tests.unit.controller.api.described import call_as_described

    call_as_described(label, url, session, bearer(SECRETS["admin"]))
