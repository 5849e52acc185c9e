"""The blobs of bundles."""
