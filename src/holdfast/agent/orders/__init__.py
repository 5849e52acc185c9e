"""What the controller and the guardian tell the agent, and how the agent carries it out."""
