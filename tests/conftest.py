"""Fixtures every test package may use: a scratch PostgreSQL (see tests/store/pg_fixture.py)."""

from __future__ import annotations

from tests.store.pg_fixture import pg_database, pg_dsn, pg_server

__all__ = ["pg_database", "pg_dsn", "pg_server"]
