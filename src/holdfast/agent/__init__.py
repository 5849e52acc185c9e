"""Run a host: the guardian, the parent of all tasks; and the agent: sync, watchdogs, probes,
logs."""

from holdfast.lean import import_msgspec

import_msgspec()
