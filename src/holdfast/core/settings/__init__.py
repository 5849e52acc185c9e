"""Every setting: the table, how a value is resolved, and what a task is watched by."""
