"""Clusters for end-to-end tests: one of a module for what only looks, one of a test for what breaks
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.store.pg_fixture import PgServer
from tests.system.cluster import Cluster
from tests.system.proxy import Proxy

MakeCluster = Callable[..., Cluster]


def make_cluster(stack: ExitStack, folder: Path, server: PgServer, **more: Any) -> Cluster:
    """A cluster with one controller, closed with `stack`."""
    name = server.create_database()
    stack.callback(server.drop_database, name)
    cluster = Cluster(folder, server.dsn_of(name), **more)
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
        name = pg_server.create_database()
        stack.callback(pg_server.drop_database, name)
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
