"""The loops of the ledger: minutes are closed, and old ones deleted."""
