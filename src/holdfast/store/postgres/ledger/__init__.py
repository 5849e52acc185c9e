"""The ledger in PostgreSQL: its one writer, and its reads."""
