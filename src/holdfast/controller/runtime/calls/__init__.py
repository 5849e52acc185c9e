"""What one replica heard of calls and executors. All of it can be lost."""
