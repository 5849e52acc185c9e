"""Pages of docs/reference that are made from the code, and held to it by tests."""
