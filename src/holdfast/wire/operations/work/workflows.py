"""The operations on workflows."""

from typing import Annotated

from msgspec import Meta

from holdfast.core.spec import Name
from holdfast.core.workflows.records import NodeRecord, RunRecord
from holdfast.core.workflows.values import NodeState, RunState
from holdfast.wire.operations.operation import Operation, PageOf, Query, Role, reads
from holdfast.wire.operations.queries import Owner, Text
from holdfast.wire.workflows import (
    AnswerRequest,
    CancelRun,
    NewWorkflow,
    NodeView,
    NodeWhy,
    RestartRun,
    RunView,
)

RUN = "/v1/workflows/{id}"


class NodesQuery(Query, frozen=True, kw_only=True):
    """The filters of the list of a run's nodes. cursor: the number of the last node of the page
    before."""

    state: tuple[NodeState, ...] = ()
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000
    cursor: Annotated[str, Meta(pattern=r"^[0-9]{1,9}$")] | None = None


class RunsQuery(Query, frozen=True, kw_only=True):
    """The filters of the list of runs, newest first."""

    state: tuple[RunState, ...] = ()
    project: Name | None = None
    owner: Owner | None = None
    name: Name | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: Text | None = None


SUBMIT_WORKFLOW = Operation(
    "POST", "/v1/workflows", Role.SUBMIT, "Run a workflow; a repeat of its id changes nothing.",
    body=NewWorkflow, answers={201: RunView}
)  # fmt: skip
LIST_RUNS = reads("/v1/workflows", "Runs of workflows, newest first.", PageOf(RunRecord), RunsQuery)
GET_RUN = reads(RUN, "One run, and how many of its nodes are in each state.", RunView)
LIST_NODES = reads(
    RUN + "/nodes", "Its nodes, in the workflow's order.", PageOf(NodeRecord), NodesQuery
)  # fmt: skip
GET_NODE = reads(RUN + "/nodes/{node}", "One node with what it does and its result.", NodeView)
GET_NODE_WHY = reads(RUN + "/nodes/{node}/why", "Why a node is where it is.", NodeWhy)
ANSWER_NODE = Operation(
    "POST", RUN + "/nodes/{node}/answer", Role.SUBMIT, "Answer a node's question.",
    body=AnswerRequest, answers={200: NodeRecord}, owned="run", repeatable=False
)  # fmt: skip
CANCEL_RUN = Operation(
    "POST", RUN + "/cancel", Role.SUBMIT, "Cancel it: what runs, cooperatively.", body=CancelRun,
    optional_body=True, answers={200: RunView, 202: RunView}, owned="run"
)  # fmt: skip
RESTART_RUN = Operation(
    "POST", RUN + "/restart", Role.SUBMIT,
    "Run again what did not succeed; finished results are used again.", body=RestartRun,
    optional_body=True, answers={200: RunView}, owned="run", repeatable=False
)  # fmt: skip
