"""A release, as `make release` built it: its files, and what they do in an environment of their own."""
