"""Workflows: graphs of calls, jobs and questions, as values and as decisions.

A *workflow* is what a user submits: *nodes* and the order between them. A *run* is one execution of
it. A node is a call of a function, a call for each item of a list (*map*), a job, or a question to
a person. It starts when its parents are over; references in its arguments are then replaced by
their results.
"""
