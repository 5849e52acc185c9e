"""The ports of what is built on jobs: calls of Python functions, workflows, schedules."""
