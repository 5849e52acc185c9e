"""Where large bytes are kept that no table should hold: checkpoints. A folder, or an S3-compatible
bucket."""
