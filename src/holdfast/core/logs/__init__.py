"""The part of a job's log that is kept, and how its lines are read. Pure.

stream   stdout or stderr of one rank in one attempt
chunk    a piece of a stream, as the store keeps it
life     one process of a rank: the attempt's first process, or a replacement
"""
