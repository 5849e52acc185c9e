"""Logs in PostgreSQL: written, read, and searched."""
