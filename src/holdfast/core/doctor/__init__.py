"""Find faults of a machine or a server in facts, and say how to mend each. Pure."""
