"""The part of a job's log that is kept, and how its lines are read. Pure."""
