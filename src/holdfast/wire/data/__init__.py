"""Messages about the data of jobs: caches and outputs."""
