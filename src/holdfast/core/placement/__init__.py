"""Which jobs start, where, and which make room."""
