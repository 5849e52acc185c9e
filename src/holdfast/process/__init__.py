"""Spawn, watch and end whole process trees: the one mechanism under the guardian and the host
manager.

It knows nothing of jobs, leases or wires; what a task is called is a mark that it is given. Linux
only (pidfds, kernel 5.4 or later).

spawn.py    fork, a few calls, exec; how a start went
watch.py    see children end, and reap them
tree.py     whose a process is, and when a whole tree is gone; kinship.py, brand.py and groups.py are its evidence
ending.py   one tree being ended: TERM, a grace, KILL
sweep.py    end what an earlier guardian left
punch.py    a log's disk use under a limit; table.py, syscalls.py: what /proc and the kernel say
"""
