"""The routes of settings and rules."""
