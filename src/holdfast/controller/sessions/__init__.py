"""Join the two ends of a session: its user, and the host that runs its task."""
