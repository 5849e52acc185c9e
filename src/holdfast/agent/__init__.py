"""A host's programs: the guardian (its init), and the agent: sync, watchdogs, probes, logs."""

from holdfast.lean import import_msgspec

import_msgspec()
