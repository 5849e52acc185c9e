"""The controller's orders and the guardian's answers, and how the agent carries them out."""
