"""What a new host has to show before it is given work. Pure."""
