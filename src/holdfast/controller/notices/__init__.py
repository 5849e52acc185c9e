"""Notices on their way to people: a process that holds the library which sends them, and the
functions that ask this process."""
