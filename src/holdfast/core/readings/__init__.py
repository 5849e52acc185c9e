"""What hosts read of their GPUs and tasks, over time."""
