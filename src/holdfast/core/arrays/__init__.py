"""One submission, many jobs that differ by an index or by parameters. Pure."""
