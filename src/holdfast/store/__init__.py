"""The only SQL. `port/` says what a store does; `postgres/` and `memory/` do it and pass one
suite."""
