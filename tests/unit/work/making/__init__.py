"""The making of Python environments."""
