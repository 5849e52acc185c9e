"""Pools, rentals and the health of hosts in PostgreSQL."""
