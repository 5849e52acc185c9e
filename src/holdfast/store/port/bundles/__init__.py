"""The port of bundles."""
