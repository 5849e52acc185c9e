"""The values of workflows: what a user submits, and the states of runs and nodes."""

from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.calls.values import FunctionSpec
from holdfast.core.spec import JobSpec, Name, Off, Seconds, ShortText

MAX_NODES = 100_000
MAX_EDGES = 1_000_000
MAX_CHOICES = 64
ANSWER_SECONDS = 120.0

# No slash, because it is also the name of the node's folder.
NodeName = Annotated[
    str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$(?!\n)")
]
Folder = Annotated[str, Meta(max_length=2048, pattern=r"^(/[^\x00]*)?$(?!\n)")]


class RunState(StrEnum):
    """The states of a run; `core.workflows.transitions` has the edges."""

    RUNNING = "running"
    FAILING = "failing"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Return whether the run has ended; only a restart makes it go on."""
        return self in (RunState.SUCCEEDED, RunState.FAILED, RunState.CANCELLED)


class RunEvent(StrEnum):
    """The events of a run."""

    FAIL = "fail"
    CANCEL = "cancel"
    SUCCEED = "succeed"
    END = "end"
    RESTART = "restart"


class NodeState(StrEnum):
    """The states of a node; `core.workflows.transitions` has the edges."""

    WAITING = "waiting"
    READY = "ready"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Return whether the node is over; only a restart of its run makes it go on."""
        return self not in (NodeState.WAITING, NodeState.READY, NodeState.STARTED)

    @property
    def passes(self) -> bool:
        """Return whether the children of a node in this state may start."""
        return self in (NodeState.SUCCEEDED, NodeState.SKIPPED)


class NodeEvent(StrEnum):
    """The events of a node."""

    RELEASE = "release"
    START = "start"
    SUCCEED = "succeed"
    SKIP = "skip"
    FAIL = "fail"
    CANCEL = "cancel"
    RESTART = "restart"


class NodeKind(StrEnum):
    """The kind of a node's work. A gang or a container is a job, too."""

    CALL = "call"
    MAP = "map"
    JOB = "job"
    ASK = "ask"


OnFailure = Literal["cancel_queued", "cancel_all", "continue"]


class Reference(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A parent's result, or a part of it: `{"$node": "decode", "path": ["frames", 0]}`.

    path: keys of objects and indices of lists, one after the other.
    """

    node: NodeName = msgspec.field(name="$node")
    path: Annotated[tuple[str | int, ...], Meta(max_length=64)] = ()


class Condition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A condition under which a node is skipped: `value` (a reference) is true in Python's sense,
    or equals `equals`; `negate` reverses it."""

    value: Any
    equals: Any | UnsetType = UNSET
    negate: bool = False


class CallWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a function; with `over`, one for each item of that list, given as the parameter
    `item`. args: by the parameters' names; JSON values with references anywhere in them."""

    spec: FunctionSpec
    args: dict[str, Any] = {}
    over: Any | UnsetType = UNSET
    item: str = ""


class JobWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job. inputs: JSON values with references; the job finds them in `HOLDFAST_INPUTS`."""

    spec: JobSpec
    inputs: dict[str, Any] = {}


class AskWork(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to a person; its result is the answer. It holds no host.

    choices: the answers that are taken; none: any text. timeout_seconds: after it the node fails,
    or answers `default`.
    """

    prompt: Annotated[str, Meta(min_length=1, max_length=4096)]
    choices: Annotated[tuple[ShortText, ...], Meta(max_length=MAX_CHOICES)] = ()
    timeout_seconds: Seconds | Off = ANSWER_SECONDS
    default: ShortText | None = None


class NodeSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One node: exactly one of `call`, `job` and `ask`.

    after: nodes that must be over before it, besides those that it refers to. skip_if: it is
    skipped where this holds; nodes that refer to it get null.
    """

    name: NodeName
    call: CallWork | None = None
    job: JobWork | None = None
    ask: AskWork | None = None
    after: Annotated[tuple[NodeName, ...], Meta(max_length=MAX_NODES)] = ()
    skip_if: Condition | None = None

    def without_secrets(self) -> "NodeSpec":
        """Return the node as it may be stored and shown: without the values of its job's
        secrets."""
        if self.job is None or not self.job.spec.secrets:
            return self
        spec = self.job.spec.without_secrets()
        return msgspec.structs.replace(self, job=msgspec.structs.replace(self.job, spec=spec))

    @property
    def kind(self) -> NodeKind:
        """Return the kind of the node's work."""
        if self.call is not None:
            return NodeKind.CALL if self.call.over is UNSET else NodeKind.MAP
        return NodeKind.JOB if self.job is not None else NodeKind.ASK


class WorkflowSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """A workflow as its user wrote it.

    on_failure: what a node's final failure does to the nodes that are not its descendants (these
    are always cancelled). cancel_queued: nodes that have not begun to run are cancelled;
    cancel_all: running ones too; continue: none.
    out_dir: a folder that all hosts see. Each node has a folder below it, named by run and node,
    which stays the same at every attempt and after a restart.
    """

    name: Name
    nodes: Annotated[list[NodeSpec], Meta(min_length=1, max_length=MAX_NODES)]
    project: Name = "default"
    on_failure: OnFailure = "cancel_queued"
    out_dir: Folder = ""
    labels: Annotated[dict[Name, ShortText], Meta(max_length=64)] = {}
