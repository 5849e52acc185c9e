"""Decisions about pools and what they rent, the same in both stores."""
