"""The supervisor: mechanisms for a policy script over live hosts. Usable alone."""
