"""Messages between a policy script, its bus process and the hosts. Pure."""
