"""The parts of hosts' syncs: what they end, and what they take for themselves (`core.placement.takes`)."""
