"""Open a person's sessions in the tasks of this host, over links that the agent dials."""
