"""An executor: one warm process in one slot, which runs calls of Python functions one after the
other. Its agent starts it (`python -m holdfast.functions.executor`).

    __main__.py      the process: environment, streams, signals
    runner.py        calls, one after the other, and when the process goes
    held_batches.py  the executor's batches, and the ends of calls that are not on record yet
    line.py          the socket to the agent, served by a thread
    place.py         what the executor does now, for its agent, in shared memory
    functions.py     functions by name
    streams.py       stdout and stderr, with a line before the output of each call
"""
