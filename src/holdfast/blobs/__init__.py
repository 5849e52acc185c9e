"""Storage for bytes too large for a table, the checkpoints: a folder, or an S3-compatible bucket."""
