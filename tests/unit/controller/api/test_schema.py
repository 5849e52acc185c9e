"""schemathesis against the running API: every request that it makes up gets an answer that the
description promises."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
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
OPERATIONS = {found.ok().label: found.ok() for found in schema.get_all_operations()}
LONG = os.environ.get("HOLDFAST_HYPOTHESIS") == "long"
made_up = settings(
    max_examples=100 if LONG else 3, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


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


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """Connections that are kept, and no look for a proxy in the environment at each call."""
    with requests.Session() as kept:
        kept.trust_env = False
        yield kept


@pytest.mark.slow
@pytest.mark.parametrize("label", OPERATIONS)
def test_the_api_keeps_its_description(label: str, url: str, session: requests.Session) -> None:
    """Built here as `schema.parametrize` builds it, which does so while tests are collected: what
    it covers systematically takes seconds to make up, in every worker."""

    def call(case: schemathesis.Case) -> None:
        if case.operation.path.endswith("/logs") and "follow" in (case.query or {}):
            case.query["follow"] = "0"
        case.call_and_validate(
            base_url=url,
            session=session,
            headers=bearer(SECRETS["admin"]),
            checks=CHECKS,
            timeout=20,
        )

    build_operation_test(
        config=schema.config,
        operation=OPERATIONS[label],
        test_func=made_up(call),
        given_kwargs={},
        feedback=FeedbackSources(),
    )()
