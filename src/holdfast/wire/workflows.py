"""The REST API's bodies about workflows."""

from typing import Annotated, Any

from msgspec import Meta

from holdfast.core.workflows.records import NodeRecord, RunRecord
from holdfast.core.workflows.values import NodeName, NodeSpec, WorkflowSpec
from holdfast.wire.api import ApiBody, WhyLine

MAX_WORKFLOW_BYTES = 64 * 1024 * 1024
Reason = Annotated[str, Meta(max_length=512)]


class NewWorkflow(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A workflow to run. id: the id of the run, chosen by the client (20 characters, `core.ids`),
    so that a repeat changes nothing."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-hjkmnp-tv-z]{20}$(?!\n)")]
    spec: WorkflowSpec


class RunView(RunRecord, frozen=True, kw_only=True):
    """A run, and the number of its nodes by state."""

    counts: dict[str, int]


class NodeView(NodeRecord, frozen=True, kw_only=True):
    """A node with its spec and its result; a map's results are in its call set (`ref`)."""

    spec: NodeSpec
    result: Any = None
    out_dir: str = ""


class NodeWhy(ApiBody, frozen=True, kw_only=True):
    """Why a node is in its state."""

    run: str
    node: str
    state: str
    summary: str
    lines: list[WhyLine]


class CancelRun(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cancel of a run. hard: running work is killed without TERM and grace."""

    reason: Reason = ""
    hard: bool = False


class RestartRun(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A restart of the nodes that did not succeed. origins: nodes to run again even though they
    succeeded, with their descendants."""

    reason: Reason = ""
    origins: Annotated[tuple[NodeName, ...], Meta(max_length=1000)] = ()


class AnswerRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The answer to a node's question."""

    answer: Annotated[str, Meta(max_length=4096)]
