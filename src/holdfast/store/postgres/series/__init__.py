"""Jobs that come in series, in PostgreSQL."""
