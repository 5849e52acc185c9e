"""Apply an event to the rows of a run. Pure: the stores load the rows, call this and write.

FLOW-1  A node ends once. An end counts only while the node is not over, and only if it is the end
        of the work under the node's present `ref`.
FLOW-2  The work of a node is submitted under an id that is on record before (`ref`), so a repeated
        start finds its own work.
FLOW-3  A node starts when every parent succeeded or was skipped, and each edge counts once:
        `waiting_on` is the number of parents that have not.
FLOW-4  A run ends when its last node does: `unended` is the number of nodes that are not over.
FLOW-5  No work of a run begins after the run's end, because a ready node that is ordered to stop is
        over only when its work is known not to be on record, or has ended.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.core.ids import make_id
from holdfast.core.transitions import step
from holdfast.core.workflows.transitions import NODE, RUN
from holdfast.core.workflows.values import (
    NodeEvent,
    NodeKind,
    NodeState,
    OnFailure,
    RunEvent,
    RunState,
)
from holdfast.errors import Conflict

Rows = Literal["children", "descendants", "unended"]
_ENDS = {
    NodeState.SUCCEEDED: NodeEvent.SUCCEED,
    NodeState.SKIPPED: NodeEvent.SKIP,
    NodeState.FAILED: NodeEvent.FAIL,
    NodeState.CANCELLED: NodeEvent.CANCEL,
}
MAX_REASON_CHARS = 2000


class RunRow(msgspec.Struct, kw_only=True):
    """A run's row, which events change. nodes: number of its nodes. unended: number of nodes that
    are not over. failed_node: the number of the node that failed first."""

    id: str
    name: str
    project: str
    state: RunState
    reason: str = ""
    on_failure: OnFailure = "cancel_queued"
    nodes: int
    unended: int
    failed_node: int | None = None
    ended_at: datetime | None = None


class NodeRow(msgspec.Struct, kw_only=True):
    """A node's row, which events change.

    waiting_on: number of parents that are not over. ref: the id of its job or call set. rounds:
    number of times that it was released to start. result: JSON text; a map's results stay in its
    call set.
    """

    number: int
    name: str
    kind: NodeKind
    state: NodeState
    waiting_on: int
    ref: str | None = None
    rounds: int = 0
    result: str | None = None
    reason: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None


class NodeEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a node's work. state: a terminal state; result: JSON text."""

    state: NodeState
    result: str | None = None
    reason: str = ""


class Stop(msgspec.Struct, frozen=True):
    """An order to stop the work `ref` of a node, or not to begin it where the node is ready.
    queued_only: work that runs already goes on."""

    number: int
    ref: str
    hard: bool = False
    queued_only: bool = False


class FlowEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event about a run, to be written in the transaction of the change that it reports."""

    kind: str
    message: str
    data: dict[str, Any] = {}


class Advance:
    """The rows of one run, and the changes made to them.

    nodes: at least the nodes that the event needs (`find_rows`), by number. children: the children
    of each of these nodes, by number. changed: the changed rows. ready: numbers of nodes that may
    start. stops: orders to stop work. events: events to write.
    """

    def __init__(
        self,
        run: RunRow,
        nodes: Iterable[NodeRow],
        children: Mapping[int, Sequence[int]],
        now: datetime,
    ) -> None:
        self.run = run
        self.nodes = {node.number: node for node in nodes}
        self.children = children
        self.now = now
        self.changed: dict[int, NodeRow] = {}
        self.ready: list[int] = []
        self.stops: list[Stop] = []
        self.events: list[FlowEvent] = []

    def log(self, kind: str, message: str, node: NodeRow | None = None, **data: Any) -> None:
        """Note an event about the run."""
        about = {"run": self.run.id, "workflow": self.run.name}
        if node is not None:
            about["node"] = node.name
        self.events.append(FlowEvent(kind=f"workflow.{kind}", message=message, data=about | data))

    def move(self, node: NodeRow, event: NodeEvent, reason: str = "") -> None:
        """Apply an event to a node: change its state by one edge of the nodes' state machine."""
        was = node.state.terminal
        node.state = step(NODE, node.state, event)
        node.reason = reason[:MAX_REASON_CHARS]
        node.ended_at = self.now if node.state.terminal else None
        self.run.unended += was - node.state.terminal
        self.changed[node.number] = node

    def release(self, node: NodeRow) -> None:
        """Let a node start whose parents are all over."""
        # A new round of a question has a new limit, and so a new id.
        if node.ref is None or node.kind is NodeKind.ASK:
            node.ref = make_work_id(self.run.id, node.number, node.rounds, self.now)
        node.rounds += 1
        self.move(node, NodeEvent.RELEASE)
        self.ready.append(node.number)


def make_work_id(run: str, number: int, rounds: int, now: datetime) -> str:
    """Return the id of a node's job or call set."""
    digest = hashlib.sha256(f"{run}/{number}/{rounds}".encode()).digest()
    return make_id(int(now.timestamp() * 1000), int.from_bytes(digest[:8], "big"))


def find_rows(run: RunRow, ends: Iterable[NodeEnd]) -> Rows:
    """Return which nodes `end_node` needs to load besides those that end."""
    if all(end.state.passes for end in ends):
        return "children"
    if run.on_failure == "continue" or run.state is not RunState.RUNNING:
        return "descendants"
    return "unended"


def begin_run(a: Advance) -> None:
    """Let the nodes without parents start."""
    for node in a.nodes.values():
        if not node.waiting_on:
            a.release(node)
    count = f"{a.run.nodes} node{'s' if a.run.nodes != 1 else ''}"
    a.log("submitted", f"workflow {a.run.name} was submitted with {count}")


def start_node(a: Advance, number: int, reason: str = "") -> None:
    """Note that a ready node's work, or its question, is on record."""
    node = a.nodes[number]
    if node.state is NodeState.READY:
        a.move(node, NodeEvent.START, reason)
        node.started_at = a.now


def stop_late(a: Advance, number: int) -> None:
    """Stop work that was submitted after its node was over, by a leader that slept meanwhile."""
    node = a.nodes[number]
    if node.state is NodeState.CANCELLED and node.ref is not None and node.kind is not NodeKind.ASK:
        a.stops.append(Stop(number, node.ref, hard=True))


def end_node(a: Advance, number: int, end: NodeEnd) -> bool:
    """End a node, and pass that on to its children and the run. Return False where it was over
    already (FLOW-1)."""
    node = a.nodes[number]
    if node.state.terminal or node.state is NodeState.WAITING:
        return False
    a.move(node, _ENDS[end.state], end.reason)
    node.result = end.result
    if node.state.passes:
        for child in a.children.get(number, ()):
            if child in a.nodes:  # else it is over
                _release_from(a, a.nodes[child])
        if node.state is NodeState.SKIPPED:
            a.log("node_skipped", f"node {node.name} was skipped", node)
    else:
        what = "failed" if node.state is NodeState.FAILED else "was cancelled"
        _fail(a, node, f"node {node.name} {what}: {node.reason}".rstrip(": "))
    _finish(a)
    return True


def fail_run(a: Advance, number: int, reason: str) -> None:
    """Fail the run because a node's event cannot be processed; fail the node where it is not
    over."""
    if a.run.state.terminal:
        return
    node = a.nodes[number]
    if not end_node(a, number, NodeEnd(state=NodeState.FAILED, reason=reason)):
        _fail(a, node, f"node {node.name}: {reason}")
        _finish(a)


def _release_from(a: Advance, node: NodeRow) -> None:
    node.waiting_on -= 1
    a.changed[node.number] = node
    if node.state is NodeState.WAITING and not node.waiting_on:
        a.release(node)


def _fail(a: Advance, node: NodeRow, reason: str) -> None:
    first = a.run.state is RunState.RUNNING
    a.run.state = step(RUN, a.run.state, RunEvent.FAIL)
    if first:
        a.run.failed_node, a.run.reason = node.number, reason[:MAX_REASON_CHARS]
    if node.state is NodeState.FAILED:
        a.log("node_failed", reason, node)
    _cancel_below(a, node)
    if first and a.run.on_failure != "continue":
        _stop_others(a, f"node {node.name} failed", queued_only=a.run.on_failure == "cancel_queued")


def _cancel_below(a: Advance, node: NodeRow) -> None:
    """Cancel the waiting descendants of a node that will not succeed."""
    todo = list(a.children.get(node.number, ()))
    while todo:
        below = a.nodes.get(todo.pop())
        if below is not None and below.state is NodeState.WAITING:
            a.move(below, NodeEvent.CANCEL, f"node {node.name} did not succeed")
            todo += a.children.get(below.number, ())


def _stop_others(a: Advance, reason: str, *, queued_only: bool = False, hard: bool = False) -> None:
    for node in a.nodes.values():
        ref = None if node.kind is NodeKind.ASK else node.ref
        if node.state in (NodeState.STARTED, NodeState.READY) and ref is not None:
            a.stops.append(Stop(node.number, ref, hard, queued_only))
        elif not node.state.terminal:
            a.move(node, NodeEvent.CANCEL, reason)


def _finish(a: Advance) -> None:
    run = a.run
    if run.unended or run.state.terminal:
        return
    succeeds = run.state is RunState.RUNNING
    run.state = step(RUN, run.state, RunEvent.SUCCEED if succeeds else RunEvent.END)
    run.ended_at = a.now
    if succeeds:
        run.reason = f"all {run.nodes} nodes are done" if run.nodes > 1 else "its node is done"
    a.log(str(run.state), f"workflow {run.name} {run.state}: {run.reason}")


def cancel_run(a: Advance, reason: str, *, hard: bool = False) -> bool:
    """Cancel a run, given all its nodes that are not over. Return False where it has ended."""
    if a.run.state.terminal:
        return False
    a.run.state = step(RUN, a.run.state, RunEvent.CANCEL)
    a.run.reason = reason
    a.log("cancelling", f"workflow {a.run.name} is being cancelled: {reason}")
    _stop_others(a, reason, hard=hard)
    _finish(a)
    return True


def restart_run(a: Advance, reason: str, origins: Collection[int] = ()) -> int:
    """Restart the nodes that did not succeed, and `origins` with their descendants, given all
    nodes. Return how many nodes are restarted.

    A node that failed continues its work: its job is retried, or those of its calls that did not
    succeed. An origin and its descendants begin anew.

    Raises:
        Conflict: the run has not ended, or there is nothing to run again.
    """
    run = a.run
    if not run.state.terminal:
        raise Conflict(f"run {run.id} is {run.state}; only one that has ended can be restarted")
    anew = _find_below(a, origins)
    again = anew | {n.number for n in a.nodes.values() if not n.state.passes}
    if not again:
        raise Conflict(f"every node of run {run.id} succeeded; name the node to restart from")
    run.state = step(RUN, run.state, RunEvent.RESTART)
    run.reason, run.failed_node, run.ended_at = reason, None, None
    for number in again:
        node = a.nodes[number]
        a.move(node, NodeEvent.RESTART)
        node.result = node.started_at = None
        node.waiting_on = 0
        if number in anew:
            node.ref = None
    for parent in again:
        for child in a.children.get(parent, ()):
            a.nodes[child].waiting_on += 1
    a.log("restarted", f"workflow {run.name} was restarted: {reason}", nodes=len(again))
    for number in sorted(again):
        if not a.nodes[number].waiting_on:
            a.release(a.nodes[number])
    return len(again)


def _find_below(a: Advance, origins: Collection[int]) -> set[int]:
    """Return the nodes given and all their descendants."""
    found = set(origins)
    todo = list(found)
    while todo:
        below = [child for child in a.children.get(todo.pop(), ()) if child not in found]
        found.update(below)
        todo += below
    return found
