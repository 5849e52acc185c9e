"""What is built on jobs, in PostgreSQL: calls of Python functions, workflows."""
