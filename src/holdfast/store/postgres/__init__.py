"""The store on PostgreSQL: the only SQL."""
