"""Send the agent's reports, logs, checkpoints and calls to the controller, and receive its
answers."""
