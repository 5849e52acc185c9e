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

from holdfast.core.transitions import Table, Transition
from holdfast.core.workflows.values import NodeEvent, NodeState, RunEvent, RunState

_to = Transition
_FINISH, _FAIL = "write_run: advance._finish", "write_run: advance._fail"
_CANCEL, _RESTART = "write_run: advance.cancel_run", "write_run: advance.restart_run"
_R, _RE = RunState, RunEvent
RUN: Table[RunState, RunEvent] = {
    (_R.RUNNING, _RE.SUCCEED): _to(_R.SUCCEEDED, "every node succeeded or was skipped", _FINISH),
    (_R.RUNNING, _RE.FAIL): _to(
        _R.FAILING, "a node failed for good, or its event was set aside", _FAIL
    ),
    (_R.RUNNING, _RE.CANCEL): _to(_R.CANCELLING, "a person asked", _CANCEL),
    (_R.FAILING, _RE.FAIL): _to(_R.FAILING, "another node failed; the first one is named", _FAIL),
    (_R.FAILING, _RE.CANCEL): _to(_R.CANCELLING, "a person asked", _CANCEL),
    (_R.FAILING, _RE.END): _to(_R.FAILED, "every node is over", _FINISH),
    (_R.CANCELLING, _RE.CANCEL): _to(_R.CANCELLING, "asked again, perhaps harder", _CANCEL),
    (_R.CANCELLING, _RE.FAIL): _to(_R.CANCELLING, "a node failed while it was told to stop", _FAIL),
    (_R.CANCELLING, _RE.END): _to(_R.CANCELLED, "every node is over", _FINISH),
    (_R.FAILED, _RE.RESTART): _to(
        _R.RUNNING, "a person asked; finished results are used again", _RESTART
    ),
    (_R.CANCELLED, _RE.RESTART): _to(
        _R.RUNNING, "a person asked; finished results are used again", _RESTART
    ),
    (_R.SUCCEEDED, _RE.RESTART): _to(_R.RUNNING, "a person asked, from a node on", _RESTART),
}

_MOVE = "write_nodes"
_N, _NE = NodeState, NodeEvent
NODE: Table[NodeState, NodeEvent] = {
    (_N.WAITING, _NE.RELEASE): _to(_N.READY, "every parent is over", _MOVE),
    (_N.WAITING, _NE.CANCEL): _to(_N.CANCELLED, "an ancestor failed, or the run stops", _MOVE),
    (_N.READY, _NE.START): _to(
        _N.STARTED, "its job or calls are on record, or its question is asked", _MOVE
    ),
    (_N.READY, _NE.SKIP): _to(_N.SKIPPED, "its `skip_if` holds", _MOVE),
    (_N.READY, _NE.FAIL): _to(_N.FAILED, "it could not be started", _MOVE),
    (_N.READY, _NE.SUCCEED): _to(
        _N.SUCCEEDED, "nothing to do, or it ended before its start was noted", _MOVE
    ),
    (_N.READY, _NE.CANCEL): _to(
        _N.CANCELLED, "the run stops, and no work of it is on record", _MOVE
    ),
    (_N.STARTED, _NE.SUCCEED): _to(_N.SUCCEEDED, "its work succeeded, or it was answered", _MOVE),
    (_N.STARTED, _NE.FAIL): _to(
        _N.FAILED, "its work failed for good, after its own retries", _MOVE
    ),
    (_N.STARTED, _NE.CANCEL): _to(_N.CANCELLED, "its work was cancelled", _MOVE),
    (_N.FAILED, _NE.RESTART): _to(_N.WAITING, "a person restarted the run", _MOVE),
    (_N.CANCELLED, _NE.RESTART): _to(_N.WAITING, "a person restarted the run", _MOVE),
    (_N.SUCCEEDED, _NE.RESTART): _to(
        _N.WAITING, "a person restarted the run from it or an ancestor", _MOVE
    ),
    (_N.SKIPPED, _NE.RESTART): _to(
        _N.WAITING, "a person restarted the run from it or an ancestor", _MOVE
    ),
}
