"""Speak with running tasks over sessions: commands, terminals, forwarded ports."""
