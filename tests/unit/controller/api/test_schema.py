"""schemathesis against the running API: every request that it makes up gets an answer that the
description promises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    ignored_auth,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from holdfast.controller.openapi import build_openapi
from holdfast.controller.routes import ENDPOINTS
from holdfast.controller.server import RunningServer, bind_socket
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.store import PostgresStore
from tests.unit.controller.conftest import SECRETS, add_tokens, bearer

# Not `positive_data_acceptance`: that a queue exists or a host is large enough, no schema can say.
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
    negative_data_rejection,
    unsupported_method,
    ignored_auth,
]

# Streams never end by themselves, and the agents' routes want a host's key: test_sync has both.
schema = (
    schemathesis.openapi.from_dict(build_openapi(ENDPOINTS))
    .include(path_regex=r"^/(v1|healthz|readyz)")
    .exclude(path_regex=r"^/v1/agent")
)


@pytest.fixture(scope="module")
def url(pg_server) -> Iterator[str]:
    """A server in a thread of its own: the made-up calls are synchronous."""
    name = pg_server.create_database()
    dsn = pg_server.dsn_of(name)
    migrate(dsn)
    ready, found = threading.Event(), {}

    async def run() -> None:
        store = PostgresStore(dsn)
        await store.open()
        await add_tokens(store)
        running = RunningServer(store, bind_socket("127.0.0.1", 0))
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


@pytest.mark.slow
@schema.parametrize()
@settings(
    max_examples=60, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_the_api_keeps_its_description(case: schemathesis.Case, url: str) -> None:
    if case.operation.path.endswith("/logs") and "follow" in (case.query or {}):
        case.query["follow"] = "0"
    case.call_and_validate(
        base_url=url, headers=bearer(SECRETS["admin"]), checks=CHECKS, timeout=20
    )
