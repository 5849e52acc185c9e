"""The routes of readings of jobs."""
