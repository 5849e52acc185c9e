"""One replica's handling of its hosts' syncs: batches, joins, orders."""
