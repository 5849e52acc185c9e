"""Readings of GPUs and tasks, over time, as hosts tell them."""
