"""Data of jobs on a host: caches, mounts and outputs."""
