"""Folders that travel: what goes of them, and how it is sent."""
