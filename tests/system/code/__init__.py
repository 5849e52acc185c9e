"""Code that travels: folders, commits and environments, by real programs over the real wire."""
