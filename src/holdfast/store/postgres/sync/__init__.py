"""What a host's sync relies on beside its own transaction: a second look at what was not found."""
