"""The loops of calls: executors are asked for, and calls of lost ones are ready again."""
