"""Calls of Python functions, in memory."""
