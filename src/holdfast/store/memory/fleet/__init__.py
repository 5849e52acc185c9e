"""The fleet in memory."""
