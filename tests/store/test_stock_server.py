"""A packaged server as its package sets it up, alone and behind a pooler. The whole of `tests/store`
runs against it with `HOLDFAST_TESTS_POSTGRES=stock`."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from bench.stock_server import USER, StockServer, find_packaged

from holdfast.errors import ValidationError
from holdfast.store.postgres.connection.migrate import migrate, read_findings
from holdfast.store.postgres.connection.session import KEEP_PLANS, Tx
from holdfast.store.postgres.store import PostgresStore
from tests.store.rig import OK, Rig
from tests.waits import wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_packaged() is None, reason="no packaged PostgreSQL; run `make tools`"),
]
POOLER = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_pooler = pytest.mark.skipif(POOLER is None, reason="no pgbouncer here; run `make tools`")
DEAR = b"explain (analyze, format json) select job_id from attempts where reason = ''"


@pytest.fixture(scope="module")
def stock() -> Iterator[StockServer]:
    with StockServer() as server:
        yield server


@pytest.fixture
def database(stock: StockServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """The name of a migrated database."""
    name = f"t{abs(hash(request.node.name)) % 10**9}"
    with psycopg.connect(stock.dsn(), autocommit=True) as conn:
        conn.execute(f"create database {name}".encode())
        migrate(stock.dsn(name))
        yield name
        conn.execute(f"drop database {name} with (force)".encode())


async def run_a_job(dsn: str) -> None:
    store = PostgresStore(dsn)
    await store.open()
    try:
        rig = Rig(store)
        await rig.host()
        job_id, key = await rig.running()
        await rig.sync(ended=[(key, OK)])
        assert (await rig.job(job_id)).state == "succeeded"
    finally:
        await store.close()


async def test_no_statement_is_compiled_though_the_server_would(
    stock: StockServer, database: str
) -> None:
    """Plans that are forbidden cost 1e10, at which a stock server compiles them at each execution:
    a job of 0.1 s took three."""
    dsn = stock.dsn(database)
    store = PostgresStore(dsn)
    await store.open()

    async def explain(tx: Tx) -> Any:
        await tx.now(None)
        (row,) = await (await tx.conn.execute(DEAR)).fetchall()
        return next(iter(row.values()))[0]

    try:
        assert "JIT" not in await store.session.transact(explain, keep_plans=True)
    finally:
        await store.close()
    with psycopg.connect(dsn) as conn:
        conn.execute(KEEP_PLANS)
        row = conn.execute(DEAR).fetchone()
        assert row is not None
        assert "JIT" in row[0][0], "the server compiles nothing itself"
    await run_a_job(dsn)
    assert read_findings(dsn) == []


def listens(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def pooler(stock: StockServer, folder: Path, mode: str) -> Iterator[int]:
    """Run PgBouncer before the server; gives its port."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = int(sock.getsockname()[1])
    server = stock.dsn().rsplit(":", 1)[1].split("/")[0]
    ini = folder / "pgbouncer.ini"
    ini.write_text(
        f"[databases]\n* = host=127.0.0.1 port={server} user={USER}\n[pgbouncer]\n"
        f"listen_addr=127.0.0.1\nlisten_port={port}\nunix_socket_dir=\nauth_type=any\n"
        f"pool_mode={mode}\n"
    )
    who: dict[str, Any] = {}
    command = [str(POOLER), "-q", "/dev/stdin"]
    if os.geteuid() == 0:
        who = {"user": "nobody", "group": "nogroup", "extra_groups": []}
    with ini.open() as words:
        process = subprocess.Popen(command, stdin=words, cwd="/", **who)
    try:
        wait_until(lambda: process.poll() is not None or listens(port), what="pgbouncer listens")
        yield port
    finally:
        process.terminate()
        process.wait(20)


@needs_pooler
async def test_a_pooler_in_session_mode_is_as_good_as_none(
    stock: StockServer, database: str, tmp_path: Path
) -> None:
    with pooler(stock, tmp_path, "session") as port:
        dsn = f"postgresql://{USER}@127.0.0.1:{port}/{database}"
        assert migrate(dsn) == []
        await run_a_job(dsn)
        assert read_findings(dsn) == []


@needs_pooler
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_a_pooler_that_shares_sessions_is_refused_by_name(
    stock: StockServer, database: str, tmp_path: Path, mode: str
) -> None:
    with (
        pooler(stock, tmp_path, mode) as port,
        pytest.raises(ValidationError, match="pool_mode = session") as caught,
    ):
        migrate(f"postgresql://{USER}@127.0.0.1:{port}/{database}")
    assert caught.value.code == "pooler_in_transaction_mode"
