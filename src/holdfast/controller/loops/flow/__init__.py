"""Loops of what is built on jobs."""
