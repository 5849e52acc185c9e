"""Pages about what an operator sets: queues, projects, pools, schedules, settings."""
