"""The users' routes, one file a subject."""
