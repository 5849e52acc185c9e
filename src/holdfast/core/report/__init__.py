"""Price the ledger's hours, find which were lost and why, and say how to mend each loss. Pure.

`money` prices hours, `rows` makes the lines of a report, `losses` the sentences about what was lost,
`budgets` judges what a project has spent, and `idle` the GPUs that are held for nothing.
"""
