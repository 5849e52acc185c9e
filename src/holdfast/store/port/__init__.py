"""What a store promises: one small port per file, and `store.py`, which holds them."""
