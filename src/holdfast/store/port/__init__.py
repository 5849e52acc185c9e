"""The contract of a store: one small port per file, and `store.py`, which joins them."""
