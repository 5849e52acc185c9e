"""The ports of calls of Python functions."""
