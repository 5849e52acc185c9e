"""Make the Python environments of jobs (`--setup`): standard library only, because a Python of a
container's image runs these files alone."""
