"""The operations on hosts, pools and agents."""
