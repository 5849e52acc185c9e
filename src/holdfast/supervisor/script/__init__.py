"""The context that a policy script opens, and the run behind it."""
