"""What a store promises about pools, rentals and the health of hosts."""
