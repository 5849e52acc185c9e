"""Loops about what hours cost: budgets, and GPUs that are held for nothing."""
