"""The fleet, decided: pools of hosts that grow and shrink with the queue. Pure."""
