"""Check this host's health: a process of its own measures, the controller judges."""
