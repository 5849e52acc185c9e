"""Bundles: the files of a folder, kept by the digests of their bytes."""
