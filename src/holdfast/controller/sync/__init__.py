"""The agents' routes: the hosts' reports, and their orders."""
