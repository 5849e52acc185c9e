"""Connections to PostgreSQL: sessions, hints, named queries, migrations."""
