"""The agents' route: what hosts report, and what they are told."""
