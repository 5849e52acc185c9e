"""What one replica does with the syncs of its hosts: batches, joins, orders."""
