"""Rows that were written, as the write-ahead log has them."""

from __future__ import annotations

import re

import psycopg

_ROW_RECORDS = (
    "INSERT",
    "INSERT+INIT",
    "UPDATE",
    "UPDATE+INIT",
    "HOT_UPDATE",
    "HOT_UPDATE+INIT",
    "DELETE",
)
_PLACE = re.compile(r"rel \d+/(\d+)/(\d+)")
_FLUSH = "select pg_logical_emit_message(true, 'counts', '')"
_RECORDS = """
    select block_ref from pg_get_wal_records_info(%s, %s)
    where resource_manager = 'Heap' and record_type = any(%s)
"""
_TABLES = """
    select pg_relation_filenode(c.oid) from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.relkind = 'r' and n.nspname = 'public'
"""


class RowCounter:
    """Counts the rows of one database's tables that were inserted, updated or deleted between two
    places of the log. dsn: of that database, by a user that may read the log."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection
        connection.execute("create schema if not exists counts")
        connection.execute("create extension if not exists pg_walinspect schema counts")
        connection.execute("set search_path = public, counts")
        row = connection.execute(
            "select oid from pg_database where datname = current_database()"
        ).fetchone()
        self._database = str(row[0]) if row else ""

    def read_place(self) -> str:
        """Return the end of the log, all of which is on the disk now."""
        self._connection.execute(_FLUSH)
        row = self._connection.execute("select pg_current_wal_flush_lsn()").fetchone()
        assert row is not None
        return str(row[0])

    def count(self, begin: str, end: str) -> int:
        """Return how many rows were written between two places."""
        tables = {str(number) for (number,) in self._connection.execute(_TABLES)}
        found = 0
        for (places,) in self._connection.execute(_RECORDS, (begin, end, list(_ROW_RECORDS))):
            match = _PLACE.search(places or "")
            if match and match[1] == self._database:
                found += match[2] in tables
        return found
