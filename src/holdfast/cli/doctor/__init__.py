"""`doctor`: look at a machine, and pack what a report of a fault needs."""
