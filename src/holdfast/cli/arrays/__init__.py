"""Arrays and sweeps on the command line."""
