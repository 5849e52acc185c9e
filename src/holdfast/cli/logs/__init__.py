"""Commands that search logs."""
