"""What is kept of a job's log, and how its lines are read. Pure."""
