"""Executors of calls on one host: how they start, what they say, and which call runs."""
