"""The ports of pools, rentals and the health of hosts."""
