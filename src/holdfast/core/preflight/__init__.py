"""The first check of a new host, before it gets work. Pure."""
