"""Bundles in PostgreSQL."""
