"""What is built on jobs, in memory: calls of Python functions, workflows."""
