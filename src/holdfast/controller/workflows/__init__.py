"""The routes of workflows, and what starts and ends their nodes."""
