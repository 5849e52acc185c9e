"""What is wrong on a machine or with a server, judged from facts, and how to mend it. Pure."""
