"""The PostgreSQL store passes the conformance suite, and keeps its promises when connections and servers die."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

pytest.register_assert_rewrite(
    "tests.store.conformance",
    "tests.store.conformance_gangs",
    "tests.store.conformance_members",
    "tests.store.conformance_quotas",
    "tests.store.conformance_reads",
    "tests.store.conformance_retries",
)

from holdfast.store.migrate import migrate  # noqa: E402
from holdfast.store.postgres import PostgresStore  # noqa: E402
from tests.store.conformance import *  # noqa: E402, F403
from tests.store.conformance_gangs import *  # noqa: E402, F403
from tests.store.conformance_members import *  # noqa: E402, F403
from tests.store.conformance_quotas import *  # noqa: E402, F403
from tests.store.conformance_reads import *  # noqa: E402, F403
from tests.store.conformance_retries import *  # noqa: E402, F403
from tests.store.pg_fixture import PgServer  # noqa: E402
from tests.store.rig import Rig  # noqa: E402


@pytest.fixture(scope="module")
def template(pg_server: PgServer) -> Iterator[str]:
    name = pg_server.create_database()
    migrate(pg_server.dsn_of(name))
    yield name
    pg_server.drop_database(name)


@pytest.fixture
def dsn(pg_server: PgServer, template: str) -> Iterator[str]:
    name = pg_server.create_database(template)
    yield pg_server.dsn_of(name)
    pg_server.drop_database(name)


@pytest.fixture
async def rig(dsn: str) -> AsyncIterator[Rig]:
    store = PostgresStore(dsn)
    await store.open()
    yield Rig(store)
    await store.close()
