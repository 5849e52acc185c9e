"""What the ledger's hours cost, which of them were lost and why, and what would mend that. Pure.

`money` prices hours, `rows` makes the lines of a report, `losses` the sentences about what was lost,
`budgets` judges what a project has spent, and `idle` the GPUs that are held for nothing.
"""
