"""Commands about calls of Python functions."""
