"""Calls of Python functions, in PostgreSQL."""
