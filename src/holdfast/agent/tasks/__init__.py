"""The tasks of this agent: their state, their files, and the work on them that is under way."""
