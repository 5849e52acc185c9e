"""What is saved at a stop, under each launcher: a table made with real torch (`table.py`)."""
