"""A function on every host, and its results merged up a tree of hosts."""
