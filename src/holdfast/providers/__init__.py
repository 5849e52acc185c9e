"""Providers of hosts, one room or file each, which do not know each other."""
