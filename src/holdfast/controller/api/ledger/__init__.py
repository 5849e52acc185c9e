"""The ledger's routes."""
