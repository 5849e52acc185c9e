"""The ledger, pure: what every second of every GPU and CPU slot was spent on.

`values` has the names and the sums, `tally` the count that an agent keeps of a task, `split_lease`
divides a lease into minutes, `host_time` names the time that no lease holds, and `close_minutes`
makes the rows of it all. The words of this room:

span      the minutes that are closed together
account   how far a lease is counted, and under which names, so that the next span goes on there
subject   the host, job and owner that rows of the ledger are about
unit      GPU or CPU slot
"""
