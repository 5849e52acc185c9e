"""The records of runs and nodes, as readers see them."""

from datetime import datetime

from holdfast.core.records import Record
from holdfast.core.workflows.values import NodeKind, NodeSpec, NodeState, OnFailure, RunState


class RunRecord(Record, frozen=True, kw_only=True):
    """A run of a workflow. nodes: number of its nodes. unended: number of nodes that are not over.
    failed_node: the name of the first node that failed.

    out_dir: the folder of the whole run; empty where it has none.
    """

    id: str
    name: str
    project: str
    owner: str = ""
    state: RunState
    reason: str
    on_failure: OnFailure
    nodes: int
    unended: int
    failed_node: str | None = None
    out_dir: str = ""
    labels: dict[str, str]
    created_at: datetime
    ended_at: datetime | None = None

    @property
    def stopping(self) -> bool:
        """Return whether none of the run's nodes may begin any more."""
        failing = self.state is RunState.FAILING and self.on_failure != "continue"
        return failing or self.state is RunState.CANCELLING or self.state.terminal


class NodeRecord(Record, frozen=True, kw_only=True):
    """A node of a run. parents: numbers of the nodes before it. ref: the id of its job or call set.

    number: its place in the workflow. waiting_on: how many parents are not over.
    """

    run: str
    number: int
    name: str
    kind: NodeKind
    state: NodeState
    waiting_on: int = 0
    ref: str | None = None
    reason: str = ""
    parents: tuple[int, ...] = ()
    started_at: datetime | None = None
    ended_at: datetime | None = None


class NodeWork(Record, frozen=True, kw_only=True):
    """A node with its spec and its result (JSON text), without its place in the graph."""

    number: int
    name: str
    kind: NodeKind
    state: NodeState
    ref: str | None = None
    rounds: int = 0
    spec: NodeSpec
    result: str | None = None
    started_at: datetime | None = None
