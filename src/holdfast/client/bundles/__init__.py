"""Folders that travel with jobs: which of their files are sent, and how."""
