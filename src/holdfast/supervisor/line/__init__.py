"""The line between a policy script and its hosts: sockets, sessions, keys."""
