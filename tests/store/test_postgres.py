"""The PostgreSQL store passes the conformance suite, and keeps its promises when connections and
servers die."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.store import PostgresStore
from tests.store.conformance.admission import *  # noqa: F403
from tests.store.conformance.drains import *  # noqa: F403
from tests.store.conformance.events import *  # noqa: F403
from tests.store.conformance.fleet import *  # noqa: F403
from tests.store.conformance.health import *  # noqa: F403
from tests.store.conformance.hosts import *  # noqa: F403
from tests.store.conformance.jobs import *  # noqa: F403
from tests.store.conformance.leadership import *  # noqa: F403
from tests.store.conformance.leases import *  # noqa: F403
from tests.store.conformance.logs import *  # noqa: F403
from tests.store.conformance.members import *  # noqa: F403
from tests.store.conformance.settings import *  # noqa: F403
from tests.store.conformance.store import *  # noqa: F403
from tests.store.conformance.telemetry import *  # noqa: F403
from tests.store.conformance.tokens import *  # noqa: F403
from tests.store.conformance.webhooks import *  # noqa: F403
from tests.store.pg_fixture import PgServer
from tests.store.rig import Rig


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
