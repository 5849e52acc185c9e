"""A tree of processes being ended: which process is told to stop, and when (telling.py, teller.py;
pipelines.py finds the readers of others), the grace and the KILL (ending.py)."""
