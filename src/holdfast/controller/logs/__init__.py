"""Searching logs."""
