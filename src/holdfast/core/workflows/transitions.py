"""The state machines of runs and nodes: (state, event) → (state, why the edge exists).

How they are coupled. Each line below is one transaction of the store, which holds the run's lock.

    node succeed, skip       each child waits for one node less; at none it takes `release`
    node fail                its waiting descendants take `cancel`; the run takes `fail`; by
                             `on_failure` other nodes take `cancel`, or their work is told to stop
    run cancel               waiting nodes and questions take `cancel`; the work of the other ready
                             and started ones is told to stop, and they take their own end
    the last node that is over
                             the run takes `succeed` or `end`
    run restart              failed and cancelled nodes take `restart`, and those without a parent
                             to wait for `release`
"""

from holdfast.core.transitions import Table
from holdfast.core.workflows.values import NodeEvent, NodeState, RunEvent, RunState

_R, _RE = RunState, RunEvent
RUN: Table[RunState, RunEvent] = {
    (_R.RUNNING, _RE.SUCCEED): (_R.SUCCEEDED, "every node succeeded or was skipped"),
    (_R.RUNNING, _RE.FAIL): (_R.FAILING, "a node failed for good, or its event was set aside"),
    (_R.RUNNING, _RE.CANCEL): (_R.CANCELLING, "a person asked"),
    (_R.FAILING, _RE.FAIL): (_R.FAILING, "another node failed; the first one is named"),
    (_R.FAILING, _RE.CANCEL): (_R.CANCELLING, "a person asked"),
    (_R.FAILING, _RE.END): (_R.FAILED, "every node is over"),
    (_R.CANCELLING, _RE.CANCEL): (_R.CANCELLING, "asked again, perhaps harder"),
    (_R.CANCELLING, _RE.FAIL): (_R.CANCELLING, "a node failed while it was told to stop"),
    (_R.CANCELLING, _RE.END): (_R.CANCELLED, "every node is over"),
    (_R.FAILED, _RE.RESTART): (_R.RUNNING, "a person asked; finished results are used again"),
    (_R.CANCELLED, _RE.RESTART): (_R.RUNNING, "a person asked; finished results are used again"),
    (_R.SUCCEEDED, _RE.RESTART): (_R.RUNNING, "a person asked, from a node on"),
}

_N, _NE = NodeState, NodeEvent
NODE: Table[NodeState, NodeEvent] = {
    (_N.WAITING, _NE.RELEASE): (_N.READY, "every parent is over"),
    (_N.WAITING, _NE.CANCEL): (_N.CANCELLED, "an ancestor failed, or the run stops"),
    (_N.READY, _NE.START): (_N.STARTED, "its job or calls are on record, or its question is asked"),
    (_N.READY, _NE.SKIP): (_N.SKIPPED, "its `skip_if` holds"),
    (_N.READY, _NE.FAIL): (_N.FAILED, "it could not be started"),
    (_N.READY, _NE.SUCCEED): (
        _N.SUCCEEDED,
        "nothing to do, or it ended before its start was noted",
    ),
    (_N.READY, _NE.CANCEL): (_N.CANCELLED, "the run stops, and no work of it is on record"),
    (_N.STARTED, _NE.SUCCEED): (_N.SUCCEEDED, "its work succeeded, or it was answered"),
    (_N.STARTED, _NE.FAIL): (_N.FAILED, "its work failed for good, after its own retries"),
    (_N.STARTED, _NE.CANCEL): (_N.CANCELLED, "its work was cancelled"),
    (_N.FAILED, _NE.RESTART): (_N.WAITING, "a person restarted the run"),
    (_N.CANCELLED, _NE.RESTART): (_N.WAITING, "a person restarted the run"),
    (_N.SUCCEEDED, _NE.RESTART): (_N.WAITING, "a person restarted the run from it or an ancestor"),
    (_N.SKIPPED, _NE.RESTART): (_N.WAITING, "a person restarted the run from it or an ancestor"),
}
