"""The agents' routes, which take the hosts' reports and answer with orders."""
