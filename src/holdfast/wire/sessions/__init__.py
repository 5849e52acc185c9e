"""Speak about sessions: a person's lines into a running task."""
