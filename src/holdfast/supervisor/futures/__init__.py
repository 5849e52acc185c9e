"""Futures, waits for many of them, and messages on their way."""
