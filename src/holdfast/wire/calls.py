"""Calls on the wire: executor ↔ agent ↔ controller, and user ↔ controller.

`POST /v1/agent/calls` is msgpack both ways: all executors of a host in one long poll, ends and
results up, batches down. Arguments and results are JSON texts, which neither agent nor controller
reads. The exchange is idempotent: ends repeat until they are in `recorded`, and a batch that an
executor does not list in `held` is sent again.

Executor ↔ agent: a Unix stream socket named by `HOLDFAST_CALLS_SOCKET`, frames of
`wire.frames`, each a msgpack `ExecutorFrame` or `AgentFrame`. The executor also keeps its place in
a memory-mapped file named by `HOLDFAST_CALLS_PLACE` (`PLACE_FORMAT`), which the agent reads once a
sample and after the executor's death, so that a call costs no message.
"""

import struct
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.bounds import MAX_FIGURE, MAX_LARGE, Count, Elapsed, Large, Whole
from holdfast.core.calls.batches import (
    MAX_BATCH_CALLS as MAX_BATCH_CALLS,  # and to those that read messages
)
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings

MAX_CALLS_BYTES = 16 * 1024 * 1024

PLACE_FORMAT = "<QQQIIdQ"
"""The executor's place: sequence (odd while it is written), batch, position in the batch, phase,
calls that began since the start, monotonic start of this phase, reserved."""

PLACE_BYTES = struct.calcsize(PLACE_FORMAT)
PHASE_IDLE, PHASE_LOADING, PHASE_CALLING = 0, 1, 2
PHASE_UNABLE = 3
"""It ends because functions of its app cannot be run on this host; its log says why."""


TAKES = ("saves",)
"""What agents carry out beside what all of them always did (`AgentFrame.takes`)."""
RETURNS = "returns"
"""In `takes` where agent and controller both know of calls that an executor gives back."""
BUSY_LONG = "long"
"""`ExecutorReport.busy` of an executor whose call runs for long; else the call that it waits for."""


class CallMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the messages. Unknown fields are ignored, so that versions one apart can talk."""


class CallEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of one call. position: in its batch. value: the result as JSON text, or with `error`
    the exception as JSON of `CallError`."""

    position: Count
    error: bool
    seconds: Elapsed
    value: str


class CallError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception that left a call. kind: its class. invalid: the arguments or the result do not
    fit the annotations: never retried. unable: the function cannot be imported on this host, and is
    tried on others (ABLE-1); an older controller reads it as invalid."""

    kind: str
    message: str
    traceback: str = ""
    invalid: bool = False
    unable: bool = False


class BatchEnds(msgspec.Struct, frozen=True, array_like=True):
    """Ends of calls of one batch."""

    batch: Large
    ends: list[CallEnd]


class CallOrder(msgspec.Struct, frozen=True, array_like=True):
    """One call to run: its set (an index of `Batch.sets`), index in the set, attempt, arguments."""

    set: Count
    index: Count
    attempt: Count
    args: str


class SetInfo(CallMessage, frozen=True, kw_only=True):
    """A call set, as executors need it. out_dir: folder for files of its calls, where one is kept."""

    id: str
    spec: FunctionSpec
    watch: WatchSettings = WatchSettings()
    out_dir: str = ""


class Batch(CallMessage, frozen=True, kw_only=True):
    """Calls handed to one executor under its lease. All of one model."""

    id: Large
    model: str | None = None
    sets: list[SetInfo]
    calls: list[CallOrder]


class Closing(CallMessage, frozen=True, kw_only=True):
    """An executor's last report, by its agent. batch, position: the call that ran when it ended, or
    -1 where none did; only that call is charged. loading: its model was being loaded. step: the last
    that this call told."""

    batch: Annotated[int, Meta(ge=-1, le=MAX_LARGE)] = -1
    position: Whole = -1
    loading: bool = False
    step: Large | None = None
    facts: TaskFacts


class ModelLoad(msgspec.Struct, frozen=True, array_like=True):
    """A model was loaded, and how long that took."""

    model: str
    seconds: Elapsed


class ExecutorReport(CallMessage, frozen=True, kw_only=True):
    """One executor's state. held: batches it has not finished. want: calls it can take now.

    loaded: the model in its memory. free_gb: memory of its GPU for a model, with what the loaded one
    frees; None: not known. mean_seconds: of its recent calls; 0 before the first.
    loads: since the last report, for the metrics; one that is lost is not said again.
    returned: (batch, first): the calls of held batches from this position on, which it has not begun
    and gives back. busy: why it takes no others beside the call that it runs (`BUSY_LONG`, or the
    call that this one waits for), and `busy_batch` the batch of the call that it runs. fresh: its
    agent does not know what was said to it before, so that it is to be said again.
    """

    key: TaskKey
    held: list[Large] = []
    ends: list[BatchEnds] = []
    want: Annotated[int, Meta(ge=0, le=MAX_BATCH_CALLS)] = 0
    loaded: str | None = None
    free_gb: Annotated[float, Meta(ge=0, le=MAX_FIGURE)] | None = None
    mean_seconds: Elapsed = 0.0
    closing: Closing | None = None
    loads: list[ModelLoad] = []
    returned: list[tuple[Large, Count]] = []
    busy: Annotated[str, Meta(max_length=64)] = ""
    busy_batch: Large = 0
    fresh: bool = False


class CallsRequest(CallMessage, frozen=True, kw_only=True):
    """All executors of a host that have something to say. A newer `seq` answers an older waiting
    call at once."""

    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    seq: Large = 0
    wait_seconds: Annotated[float, Meta(ge=0, le=30)] = 0.0
    executors: Annotated[list[ExecutorReport], Meta(max_length=4096)] = []


class ExecutorAnswer(CallMessage, frozen=True, kw_only=True):
    """recorded: (batch, position) of ends that are on record or refused; forget them.

    dropped: batches that are not this executor's any more; drop them without a report.
    cancelled: (batch, position) whose user cancelled them, and beside them `cancel_reasons`; killed:
    those of them that end at once, with this executor where one runs. lost: the lease is gone: stop.
    leave: nothing waits for this family, or its slot is wanted: exit when idle.
    """

    key: TaskKey
    batches: list[Batch] = []
    recorded: list[tuple[Large, Count]] = []
    dropped: list[Large] = []
    cancelled: list[tuple[Large, Count]] = []
    cancel_reasons: list[str] = []
    killed: list[tuple[Large, Count]] = []
    lost: bool = False
    leave: bool = False


class CallsAnswer(CallMessage, frozen=True, kw_only=True):
    """What each executor of the request shall do. unread: of reports that cannot be read, why; the
    others were taken. takes: what the controller knows beside what all of them always did."""

    executors: list[ExecutorAnswer] = []
    unread: list[str] = []
    takes: tuple[str, ...] = ()


class ModelLimits(CallMessage, frozen=True, kw_only=True):
    """A model's own limits. load_seconds: of its loading; stall_seconds: the least patience with its
    calls, 0 where they are not watched for stalls; None: what is set elsewhere. vram_gb: memory of a
    GPU that it needs, 0 where it does not say."""

    load_seconds: Elapsed | None = None
    stall_seconds: Elapsed | None = None
    vram_gb: Annotated[float, Meta(ge=0, le=MAX_FIGURE)] = 0.0


class BlobDone(CallMessage, frozen=True, kw_only=True):
    """A blob that its executor asked for is in its folder, or in the blob store; or the reason why
    it is not."""

    sha256: str
    error: str | None = None


class CallSave(msgspec.Struct, frozen=True, array_like=True):
    """A call's checkpoint on its way, by batch and position. sha256: of what it saves; empty: it asks
    for what an earlier attempt saved."""

    batch: Large
    position: Count
    sha256: str = ""

    @property
    def file_name(self) -> str:
        """Its file in the folder of blobs."""
        return f"{self.batch}.{self.position}.checkpoint-{'out' if self.sha256 else 'in'}"


class SaveDone(CallMessage, frozen=True, kw_only=True):
    """A checkpoint is on record, or in the folder (found), or why not. refused: for good."""

    save: CallSave
    found: bool = False
    error: str | None = None
    refused: bool = False


class ExecutorFrame(CallMessage, frozen=True, kw_only=True):
    """Executor → agent. hello: the first frame of a connection; `held` and `ends` are then whole.

    batches: with hello, those held, without their arguments, so that a new agent knows how to watch
    them. models: the models it can load. fetch, keep: blobs (SHA-256) to be brought into the folder
    `HOLDFAST_CALLS_BLOBS`, or taken from it into the blob store. saves: the same of checkpoints.
    returned, busy, busy_batch: as in `ExecutorReport`.
    """

    task: str = ""
    hello: bool = False
    held: list[Large] = []
    batches: list[Batch] = []
    ends: list[BatchEnds] = []
    want: Count = 0
    loaded: str | None = None
    models: dict[str, ModelLimits] = {}
    mean_seconds: Elapsed = 0.0
    loads: list[ModelLoad] = []
    fetch: list[str] = []
    keep: list[str] = []
    saves: list[CallSave] = []
    returned: list[tuple[Large, Count]] = []
    busy: str = ""
    busy_batch: Large = 0


class AgentFrame(CallMessage, frozen=True, kw_only=True):
    """Agent → executor; the fields are those of `ExecutorAnswer`, and `blobs` and `saves` as asked
    for. takes: in the first frame of a connection, the fields of `ExecutorFrame` that the agent knows
    how to carry out (`TAKES`); an executor of a later version waits for no other. With `RETURNS` in
    it, from whenever the agent knows of that, calls may be given back."""

    batches: list[Batch] = []
    recorded: list[tuple[Large, Count]] = []
    dropped: list[Large] = []
    cancelled: list[tuple[Large, Count]] = []
    cancel_reasons: list[str] = []
    leave: bool = False
    blobs: list[BlobDone] = []
    saves: list[SaveDone] = []
    takes: tuple[str, ...] = ()


# ---- users


class NewCallSet(CallMessage, frozen=True, kw_only=True):
    """`POST /v1/call-sets`. id: chosen by the client (20 characters, `core.ids`), so that a repeat
    changes nothing. count: how many calls it will have, where known. args: the first of them. singles:
    of single calls, whose client never means to submit more."""

    id: str
    spec: FunctionSpec
    singles: bool = False
    count: Count | None = None
    args: Annotated[list[str], Meta(max_length=10_000)] = []


class MoreCalls(CallMessage, frozen=True, kw_only=True):
    """`POST /v1/call-sets/{id}/calls`. first: the index of the first; repeated indices change
    nothing. count: the whole count, with the last of them. Without any, the client says that it
    is there: a set whose client is silent for a while is closed. cut: with the count, why these are
    fewer than it meant to submit."""

    first: Count
    cut: Annotated[str, Meta(max_length=1000)] = ""
    args: Annotated[list[str], Meta(max_length=10_000)] = []
    count: Count | None = None


class CallSetView(CallMessage, frozen=True, kw_only=True):
    """A call set and its counts. state: "open" while calls may come or run, else "ended". running:
    executors have calls of it in hand, as far as a read of it tells (a submission does not look).
    time_limit_seconds, time_limit_source: of each call, in the answer to a GET of the set: the layer
    that names it, function, queue, project, cluster or environment, or calls: the queue's own for
    calls. Null: none. cut: why it has fewer calls than its client meant to submit; such a set has
    failed."""

    id: str
    owner: str = ""
    spec: FunctionSpec
    state: Literal["open", "ended"]
    count: int | None
    submitted: int
    succeeded: int
    failed: int
    cancelled: int
    created_at: float
    ended_at: float | None = None
    running: bool = False
    cut: str = ""
    time_limit_seconds: float | None = None
    time_limit_source: str = ""


class CallResult(msgspec.Struct, frozen=True, array_like=True):
    """One call's outcome. state: of `CallState`. value: result or error as JSON text."""

    index: int
    state: int
    value: str
    attempts: int
    reason: str


class CallResults(CallMessage, frozen=True, kw_only=True):
    """`GET /v1/call-sets/{id}/results?first=&limit=&wait=`: the calls from `first` on without a gap
    that have ended; or `?index=3,17,…&wait=` any of these that have; or `?state=failed&first=` those
    in a state. next: the `first` to go on with. ended: there is nothing more to wait for."""

    results: list[CallResult]
    next: int = 0
    ended: bool = False


class CallsChange(CallMessage, frozen=True, kw_only=True):
    """`POST /v1/call-sets/{id}/cancel` and `…/retry`. indices: these calls; None: all it may concern
    (those that have not ended; those that failed or were cancelled). hard: of a cancel, end calls that
    run at once, with their executors."""

    indices: Annotated[list[Count], Meta(max_length=100_000)] | None = None
    reason: Annotated[str, Meta(max_length=1000)] = ""
    hard: bool = False


class CallFailureView(CallMessage, frozen=True, kw_only=True):
    """One failed attempt of a call. Times are Unix seconds."""

    attempt: int
    host: str | None = None
    cause: str | None = None
    reason: str = ""
    began_at: float | None = None
    ended_at: float | None = None


class CallLogLine(CallMessage, frozen=True, kw_only=True):
    """Bytes that a call printed, in an SSE `log` event of `GET …/calls/{index}/logs`, base64 in `data`.

    job, offset: the executor in whose log they stand, and where. gap: bytes missing just before.
    """

    attempt: int
    job: str
    stream: Literal["stdout", "stderr"]
    offset: int
    data: bytes
    gap: int = 0


class CallWhyLine(CallMessage, frozen=True, kw_only=True):
    """One thing that holds a call where it is, and what to do about it."""

    code: str
    message: str
    hint: str = ""


class CallView(CallMessage, frozen=True, kw_only=True):
    """`GET /v1/call-sets/{id}/calls/{index}`: one call, its failed attempts, and why it is where it is.

    state: "ready", "running", "backing_off", "succeeded", "failed" or "cancelled". value: the result
    or the error as JSON text, once it has ended. executor: the job that runs it.
    """

    set: str
    index: int
    function: str
    state: Literal["ready", "running", "backing_off", "succeeded", "failed", "cancelled"]
    attempts: int
    reason: str = ""
    value: str = ""
    executor: str | None = None
    failures: list[CallFailureView] = []
    why: list[CallWhyLine] = []
