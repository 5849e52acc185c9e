"""Everything the agent sends to the controller."""
