"""The only SQL: `postgres/` is the store, `embedded/` the PostgreSQL server that `up` starts."""
