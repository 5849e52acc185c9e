"""The contract of a store: `store.py` has one small port for each thing, and `clock.py` the time
and the user of a call."""
