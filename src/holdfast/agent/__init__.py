"""What runs on a host: the guardian (its init), and the agent that thinks: sync, watchdogs, probes,
logs, forensics."""
