"""Where the ranks of a run are: stacks and flight records, merged into one report."""
