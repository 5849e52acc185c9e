"""The embedded PostgreSQL server: found, made, started, watched and ended."""
