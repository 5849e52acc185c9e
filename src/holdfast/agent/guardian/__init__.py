"""Serve the host as its guardian: the parent of every task, and of the agent."""
