"""The guardian: the host's init, parent of every task."""
