"""Messages about logs."""
