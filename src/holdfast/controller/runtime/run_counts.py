"""Totals that supervised runs report, added to this replica's counters.

RUN-COUNT-1  Each count of a run is added once: a report adds the part beyond the last report of the
             same task to this replica. The first report that a replica receives of a task adds
             nothing, because another replica may have counted it.
"""

import functools
import math
from collections import OrderedDict
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter

from holdfast.core.ids import TaskKey
from holdfast.wire.agent import TaskReport

_TEXTS = {
    "hosts_lost": "Hosts that policy scripts lost, gave back or replaced.",
    "messages_in": "Messages that policy scripts got from their host managers.",
    "messages_dropped": "Messages of supervised processes that were never received.",
    "frames_in": "Frames that policy scripts got from their host managers.",
    "frames_out": "Frames that policy scripts sent to their host managers.",
    "frames_resent": "Frames that policy scripts sent again.",
    "frames_unreachable": "Frames of policy scripts for host managers that were gone.",
    "disconnects": "Connections to policy scripts that ended.",
    "busy_seconds": "Seconds for which the threads of policy scripts' buses worked.",
    "refused": "Frames that policy scripts refused.",
}
_MOST_TASKS = 10_000


class RunCounts:
    """The counters, and the last totals of each task, which may be forgotten at any time."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = functools.partial(Counter, registry=registry)
        self._counters = {
            name: counter(f"holdfast_supervisor_{name}", text) for name, text in _TEXTS.items()
        }
        self._last: OrderedDict[TaskKey, dict[str, float]] = OrderedDict()

    def add_counts(self, tasks: Iterable[TaskReport]) -> None:
        """Add the new counts in the reports of one sync (RUN-COUNT-1)."""
        for task in tasks:
            if task.counts:
                self._add(task.key, task.counts)
            if self._last and task.state == "ended":
                self._last.pop(task.key, None)

    def _add(self, key: TaskKey, counts: dict[str, float]) -> None:
        before = self._last.get(key)
        if before is not None:
            for name, counter in self._counters.items():
                grown = counts.get(name, 0.0) - before.get(name, 0.0)
                if grown > 0 and math.isfinite(grown):
                    counter.inc(grown)
        self._last[key] = counts
        self._last.move_to_end(key)
        while len(self._last) > _MOST_TASKS:
            self._last.popitem(last=False)
