"""Decide about sessions: which user may come into which task."""
