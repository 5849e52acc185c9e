"""Calls of Python functions: what is decided about them, as values.

A *function* is a Python function that its user declared with `@holdfast.task`. A *call* is one
invocation of it: a row of a narrow table, and no job. Calls of one function that were submitted
together are a *call set*; a call is named `SET.INDEX`. An *executor* is a job that Holdfast itself
submits: one warm process in one slot, which runs *batches* of calls one call after the other. All
executors that could run a call are of one *family* (same app, queue, project, resources and labels
of hosts); the calls that wait for one family and one model are a *feed*.
"""
