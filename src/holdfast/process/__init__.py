"""Spawn, watch and end whole process trees: the one mechanism under the guardian and the host
manager.

The package knows nothing of jobs, leases or wires; a task's name is a mark that the caller passes.
Linux only (pidfds, kernel 5.4 or later).

nursery.py  programs from their start to the end of their trees; loop.py is its owner's poll loop
spawn.py    fork, a few calls, exec; how a start went
watch.py    see children end, and reap them
tree.py     which tree a process belongs to, and when a whole tree is gone; brand.py and groups.py
            are its evidence
endings/    one tree being ended: TERM, a grace, KILL
sweep.py    end the processes that an earlier guardian left; urgent.py: at real-time priority
table.py    the process table, read from /proc; syscalls.py: Linux calls that Python has no name for
"""
