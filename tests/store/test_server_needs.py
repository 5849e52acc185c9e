"""Servers of somebody else's that Holdfast cannot use are refused at the start, by name; those it
can use may be set up as they like."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.store.postgres.connection.migrate import migrate, read_status
from holdfast.store.postgres.connection.server_needs import ServerFacts, judge_server
from holdfast.store.postgres.store import PostgresStore
from tests.store.pg_fixture import PgServer
from tests.store.rig import Rig
from tests.system.proxy import Proxy

GOOD = ServerFacts(number=140000, version="14.0", encoding="UTF8", read_only=False)


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (GOOD, None),
        (ServerFacts(180006, "18.6", "UTF8", False), None),
        (ServerFacts(130023, "13.23", "UTF8", False), "postgres_too_old"),
        (ServerFacts(90624, "9.6.24", "UTF8", False), "postgres_too_old"),
        (ServerFacts(150018, "15.18", "SQL_ASCII", False), "wrong_encoding"),
        (ServerFacts(150018, "15.18", "UTF8", True), "read_only"),
    ],
)
def test_what_is_refused(facts: ServerFacts, code: str | None) -> None:
    refused = judge_server(facts, to_write=True)
    assert (None if refused is None else refused.code) == code
    read_only = judge_server(facts, to_write=False)
    assert (None if read_only is None else read_only.code) == (
        None if code == "read_only" else code
    )


def make_old(data: bytes) -> bytes:
    """What the server says of its version when a connection begins, with another major number in
    front."""
    return re.sub(rb"(?<=server_version\0)\d\d(?=\.)", b"13", data)


def test_a_server_that_is_too_old_is_refused_by_name(pg_server: PgServer, pg_database: str) -> None:
    dsn = urlsplit(pg_server.dsn_of(pg_database.rsplit("/", 1)[1].split("?")[0], loopback=True))
    with Proxy(dsn.port or 0) as proxy:
        proxy.rewrite = make_old
        through = urlunsplit(
            dsn._replace(netloc=dsn.netloc.replace(f":{dsn.port}", f":{proxy.port}"))
        )
        for refused in (migrate, read_status):
            with pytest.raises(
                ValidationError, match=r"PostgreSQL 13\.\d+.* 14 or newer"
            ) as caught:
                refused(through)
            assert caught.value.code == "postgres_too_old"
        proxy.rewrite = bytes
        assert read_status(through).version == 0, "a refused server was written to"


@pytest.fixture
def latin(pg_server: PgServer) -> Iterator[str]:
    name = pg_server.create_database()
    with psycopg.connect(pg_server.dsn, autocommit=True) as conn:
        provider = "locale_provider libc" if conn.info.server_version >= 150000 else ""
        conn.execute(f"drop database {name}".encode())
        conn.execute(
            f"create database {name} encoding 'LATIN1' {provider} lc_collate 'C' lc_ctype 'C' "
            "template template0".encode()
        )
    try:
        yield pg_server.dsn_of(name)
    finally:
        pg_server.drop_database(name)


def test_an_encoding_that_cannot_hold_every_text_is_refused(latin: str) -> None:
    with pytest.raises(ValidationError, match=r"LATIN1.*UTF8"):
        migrate(latin)


def alter(dsn: str, *settings: str) -> None:
    """Give the database defaults of its own, as an owner may."""
    with psycopg.connect(dsn, autocommit=True) as conn:
        for setting in settings:
            conn.execute(f"alter database {conn.info.dbname} set {setting}".encode())


def test_a_database_that_takes_no_writes_is_waited_for(pg_database: str) -> None:
    migrate(pg_database)
    alter(pg_database, "default_transaction_read_only = on")
    with pytest.raises(Unavailable, match="takes no writes") as caught:
        migrate(pg_database)
    assert caught.value.code == "read_only"
    assert not read_status(pg_database).pending


def test_a_role_without_rights_is_told_what_to_grant(pg_server: PgServer, pg_database: str) -> None:
    with psycopg.connect(pg_database, autocommit=True) as conn:
        role = f"guest_{conn.info.dbname}"
        conn.execute(
            "revoke create on schema public from public"
        )  # as it is by itself since PostgreSQL 15
        conn.execute(f"create role {role} login password 'secret'".encode())
        owner = urlsplit(pg_database)
        guest = urlunsplit(owner._replace(netloc=f"{role}:secret@"))
        try:
            with pytest.raises(
                ValidationError, match=f'GRANT CREATE ON SCHEMA public TO "{role}"'
            ) as caught:
                migrate(guest)
            assert caught.value.code == "no_privilege"
            assert read_status(guest).version == 0
            conn.execute(
                f"grant create on schema public to {role}".encode()
            )  # what it says is enough
            assert migrate(guest) == ["0001_schema"]
        finally:
            conn.execute(f"drop owned by {role} cascade".encode())
            conn.execute(f"drop role {role}".encode())


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql:/me:hunter2@db/holdfast",
        "me:hunter2@db",
        "postgresql://me:hunter2@db/x?nonsense=hunter2",
    ],
)
def test_a_dsn_that_cannot_be_read_is_not_repeated(dsn: str) -> None:
    for refused in (migrate, read_status):
        with pytest.raises(HoldfastError, match="DSN cannot be read") as caught:
            refused(dsn)
        assert caught.value.code == "bad_dsn"
        assert "hunter2" not in str(caught.value)


async def test_the_defaults_an_owner_gave_the_database_change_nothing(pg_database: str) -> None:
    migrate(pg_database)
    alter(
        pg_database,
        "datestyle = 'German, DMY'",
        "default_transaction_isolation = 'serializable'",
        "timezone = 'Asia/Tokyo'",
        "bytea_output = 'escape'",
        "intervalstyle = 'sql_standard'",
    )
    assert migrate(pg_database) == []
    store = PostgresStore(pg_database)
    await store.open()
    try:
        rig = Rig(store)
        await rig.host()
        job_id, _ = await rig.running()
        assert (await rig.job(job_id)).state == "running"
        assert (await store.now()).utcoffset() is not None
        level = await store.session.single(lambda tx: tx.conn.execute("show transaction_isolation"))
        assert await level.fetchone() == {"transaction_isolation": "read committed"}
    finally:
        await store.close()
