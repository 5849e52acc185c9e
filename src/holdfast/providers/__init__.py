"""Providers of hosts, one room or file each. They do not know each other."""
