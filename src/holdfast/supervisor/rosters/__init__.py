"""The fleet as a script sees it: hosts, process groups, events, failures, and the saved run."""
