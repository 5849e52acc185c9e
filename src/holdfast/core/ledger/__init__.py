"""The ledger, pure: what every second of every GPU and CPU slot was spent on.

`values` has the names and the sums, `tally` the count that an agent keeps of a task, `cut` divides
a lease into minutes, and `host_time` names the time that no lease holds.
"""
