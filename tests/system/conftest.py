"""Clusters for end-to-end tests: `shared` by a module's tests, or `cluster`, for a test that breaks
it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.store.embedded.postgres import EmbeddedPostgres
from tests.store.pg_fixture import FAST_SETTINGS, PgServer
from tests.system.cluster import Cluster
from tests.system.proxy import Proxy


def make_cluster(stack: ExitStack, folder: Path, server: PgServer, **settings: object) -> Cluster:
    """A cluster with one controller, whose checkpoints lie in its folder; closed with `stack`."""
    name = server.take_emptied()
    stack.callback(server.give_back, name)
    settings = {"blobs": str(folder / "blobs"), **settings}
    cluster = Cluster(folder, server.dsn_of(name), settings=settings)
    stack.callback(cluster.close)
    cluster.add_controller()
    return cluster


@pytest.fixture
def cluster(tmp_path: Path, pg_server: PgServer) -> Iterator[Cluster]:
    """A controller for this test alone, no hosts yet."""
    with ExitStack() as stack:
        yield make_cluster(stack, tmp_path, pg_server)


@pytest.fixture
def proxied(tmp_path: Path, pg_server: PgServer) -> Iterator[tuple[Cluster, Proxy]]:
    """The same, with a proxy between the controller and its database."""
    with ExitStack() as stack:
        name = pg_server.take_emptied()
        stack.callback(pg_server.give_back, name)
        dsn = pg_server.dsn_of(name, loopback=True)
        before, _, after = dsn.rpartition("@")
        port = int(after.split("/")[0].rsplit(":", 1)[1])
        proxy = stack.enter_context(Proxy(port))
        cluster = Cluster(tmp_path, f"{before}@127.0.0.1:{proxy.port}/{name}")
        stack.callback(cluster.close)
        stack.callback(proxy.restore)
        cluster.add_controller()
        yield cluster, proxy


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, pg_server: PgServer) -> Iterator[Cluster]:
    """A controller for all tests of a module. Each brings its own hosts and queues, so that none
    sees another's."""
    with ExitStack() as stack:
        yield make_cluster(stack, tmp_path_factory.mktemp("cluster"), pg_server)


@pytest.fixture
def own_database(memory_path: Path) -> Iterator[EmbeddedPostgres]:
    """A PostgreSQL server of this test's own, to be killed."""
    # Without fsync, which guards against a crash of the machine, not of the server. What a commit
    # promised must be in the file.
    settings = {**FAST_SETTINGS, "synchronous_commit": "on"}
    server = EmbeddedPostgres(memory_path / "pg", settings=settings)
    server.start()
    yield server
    server.stop()
