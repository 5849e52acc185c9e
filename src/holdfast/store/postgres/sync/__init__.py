"""Statements that a host's sync runs beside its own transaction: a second look for missing rows."""
