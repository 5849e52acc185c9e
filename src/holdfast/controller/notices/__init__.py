"""Notices on their way to people: a process that holds the library, and how it is asked."""
