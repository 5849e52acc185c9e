"""The fleet in PostgreSQL: pools, the machines they rent, and the snapshot of a cycle."""
