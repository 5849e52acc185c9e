"""Python functions as calls: `task` declares a function, `model` declares a model that stays loaded
between calls, `context` returns the running call's context, `as_completed` yields handles in the
order of their ends.

    @holdfast.task(queue="gpu", retry=2)
    def double(n: int) -> int:
        return 2 * n

    double(3)                       # runs here, in place
    double.submit(3).result()       # runs on a host that lists this module
    list(double.map(range(1000)))   # results in the order of the items
"""

from holdfast.functions.declare import TaskFunction, task
from holdfast.functions.failures import CallCancelled, CallFailed
from holdfast.functions.handles import CallHandle, as_completed
from holdfast.functions.mapping import MapResults
from holdfast.functions.models import WarmModel, model
from holdfast.functions.running import CallContext, context

__all__ = [
    "CallCancelled",
    "CallContext",
    "CallFailed",
    "CallHandle",
    "MapResults",
    "TaskFunction",
    "WarmModel",
    "as_completed",
    "context",
    "model",
    "task",
]
