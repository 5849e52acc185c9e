"""Debug reports of a run: its ranks' stacks and flight records, merged into one."""
