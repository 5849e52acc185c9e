"""The only SQL. `interface.py` says what a store does; `postgres.py` and `memory.py` do it and pass
one suite."""
