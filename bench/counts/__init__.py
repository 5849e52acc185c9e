"""Counts of the cost of acts: statements, transactions, rows, requests, bytes, forks, files. No
times. The table stands in docs/reference/costs.md, and `tests/system/costs/` holds it."""
