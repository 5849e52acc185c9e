"""Debug reports of a run: its ranks' stacks and flight records, merged into one.

A *flight record* is torch's list of the collectives that a rank entered last; a *span* is a range
of ranks, so that a set of thousands is a few numbers.
"""
