"""A tree of processes being ended: which process is told to stop, and when (teller.py, by the table of
`process/telling.py`; pipelines.py finds the readers of others), the grace and the KILL (ending.py)."""
