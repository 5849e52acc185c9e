"""Other systems, measured beside Holdfast on the same machine in the same run. Their packages are in an environment of their own."""
