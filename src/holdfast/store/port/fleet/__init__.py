"""What the store promises about the fleet."""
