"""Workflows as their users build them: in Python, or in a file."""
