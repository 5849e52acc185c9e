"""Data of jobs, decided in values: caches, mounts and outputs."""
