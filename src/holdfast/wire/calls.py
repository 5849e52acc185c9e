"""Calls on the wire: executor ↔ agent ↔ controller, and user ↔ controller.

`POST /v1/agent/calls` is one long poll for all executors of a host, msgpack both ways: the agent
sends ends with results, the controller answers with batches. Arguments and results are JSON texts,
which neither agent nor controller reads. The exchange is idempotent: ends repeat until they are in
`recorded`, and a batch that an executor does not list in `held` is sent again.

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
    MAX_BATCH_CALLS as MAX_BATCH_CALLS,  # re-exported for readers of messages
)
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.settings.watch import WatchSettings

MAX_CALLS_BYTES = 16 * 1024 * 1024

PLACE_FORMAT = "<QQQIIdQ"
"""The fields of the executor's place: sequence (odd during a write), batch, position in the batch,
phase, number of calls begun since the start, monotonic start of the phase, reserved."""

APP_CODE = "HOLDFAST_APP_CODE"
"""The variable that tells an executor the code that was brought for it, as JSON of a `CodeRef`."""

PLACE_BYTES = struct.calcsize(PLACE_FORMAT)
PHASE_IDLE, PHASE_LOADING, PHASE_CALLING = 0, 1, 2
PHASE_UNABLE = 3
"""The phase of an executor that ends because functions of its app cannot run on this host; its log
says why."""
PHASE_UNLOADING = 4


BUSY_LONG = "long"
"""The value of `ExecutorReport.busy` for a call that runs long, where it waits for no other
call."""


class CallMessage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Root of the messages. Unknown fields are ignored, so that versions one apart can talk."""


class CallEnd(msgspec.Struct, frozen=True, array_like=True):
    """The end of one call. position: its place in the batch. seconds: its duration. value: the
    result as JSON text, or with `error` the exception as JSON of `CallError`."""

    position: Count
    error: bool
    seconds: Elapsed
    value: str


class CallError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception that left a call. kind: its class. invalid: the arguments or the result do not
    match the annotations, so the call is never retried. unable: the function cannot be imported on
    this host, so the call is tried on others (ABLE-1)."""

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
    """The fields of a call set that executors need. out_dir: folder for files of its calls, or
    ""."""

    id: str
    spec: FunctionSpec
    watch: WatchSettings = WatchSettings()
    out_dir: str = ""


class Batch(CallMessage, frozen=True, kw_only=True):
    """Calls handed to one executor under its lease, all of them for one model."""

    id: Large
    model: str | None = None
    sets: list[SetInfo]
    calls: list[CallOrder]


class Closing(CallMessage, frozen=True, kw_only=True):
    """The last report of an executor, made by its agent. batch, position: the call that ran when
    the executor ended, -1 without one; only this call is charged. loading: the model for the call
    was being loaded. step: the last step that the call reported. facts: the executor's end."""

    batch: Annotated[int, Meta(ge=-1, le=MAX_LARGE)] = -1
    position: Whole = -1
    loading: bool = False
    step: Large | None = None
    facts: TaskFacts


class ModelLoad(msgspec.Struct, frozen=True, array_like=True):
    """The load of a model, and how long it took."""

    model: str
    seconds: Elapsed


class ExecutorReport(CallMessage, frozen=True, kw_only=True):
    """The state of one executor.

    held: batches that it has not finished. ends: ends of their calls. want: number of further calls
    that it can accept now. loaded: the model in its memory. free_gb: memory of its GPU for a model,
    including what unloading the present one frees; None: not known. mean_seconds: mean duration of
    its recent calls, 0 before the first. closing: with the last report. loads: loads of models
    since the last report, for metrics; a lost report is not repeated.
    returned: (batch, first): the executor gives back the calls of a held batch from position
    `first` on, which it has not begun. busy: why it accepts no further calls beside the one that
    runs (`BUSY_LONG`, or the call that this one waits for); busy_batch: the batch of the running
    call. fresh: its agent has restarted, so the controller must repeat its standing orders.
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
    """The reports of a host's executors that have changes. seq: a newer number makes an older
    waiting request return at once."""

    incarnation: Annotated[str, Meta(min_length=8, max_length=64)]
    seq: Large = 0
    wait_seconds: Annotated[float, Meta(ge=0, le=30)] = 0.0
    executors: Annotated[list[ExecutorReport], Meta(max_length=4096)] = []


class ExecutorAnswer(CallMessage, frozen=True, kw_only=True):
    """The orders to one executor.

    batches: calls to run. recorded: (batch, position) of ends that are on record or refused; the
    executor forgets them. dropped: batches that are not this executor's any more; it drops them
    without a report. cancelled: (batch, position) of calls that their user cancelled;
    cancel_reasons: the reason for each. killed: cancelled calls that end at once, with this
    executor if it runs one of them. lost: the lease is gone, so the executor stops. leave: the
    executor exits when idle, because no call waits for its family or its slot is needed.
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
    """The orders to each executor of a request. unread: for each report that could not be read,
    why; the others were applied."""

    executors: list[ExecutorAnswer] = []
    unread: list[str] = []


class ModelLimits(CallMessage, frozen=True, kw_only=True):
    """The limits that a model's declaration sets. load_seconds: longest time of its loading.
    stall_seconds: least stall timeout of its calls, 0: they are not watched for stalls. None: other
    settings decide. vram_gb: GPU memory that it needs, 0 where it does not say."""

    load_seconds: Elapsed | None = None
    stall_seconds: Elapsed | None = None
    vram_gb: Annotated[float, Meta(ge=0, le=MAX_FIGURE)] = 0.0


class BlobDone(CallMessage, frozen=True, kw_only=True):
    """The answer to an executor's request for a blob: the blob is in its folder, or in the blob
    store. error: why it is not."""

    sha256: str
    error: str | None = None


class CallSave(msgspec.Struct, frozen=True, array_like=True):
    """A request about a call's checkpoint. batch, position: the call. sha256: the hash of the bytes
    to store; empty: the call asks for the checkpoint of an earlier attempt."""

    batch: Large
    position: Count
    sha256: str = ""

    @property
    def file_name(self) -> str:
        """Return the name of its file in the folder of blobs."""
        return f"{self.batch}.{self.position}.checkpoint-{'out' if self.sha256 else 'in'}"


class SaveDone(CallMessage, frozen=True, kw_only=True):
    """The answer to a `CallSave`: the checkpoint is on record, or, if asked for, in the folder.

    found: an earlier attempt had saved one. error: why it failed. refused: another try is useless.
    """

    save: CallSave
    found: bool = False
    error: str | None = None
    refused: bool = False


class ExecutorFrame(CallMessage, frozen=True, kw_only=True):
    """Executor → agent. hello: the first frame of a connection; `held` and `ends` are then whole.

    batches: with hello, the held batches without their arguments, so that a new agent knows how to
    watch their calls. models: the models it can load. fetch: blobs (SHA-256) to bring into the
    folder `HOLDFAST_CALLS_BLOBS`; keep: blobs to store from that folder in the blob store. saves:
    requests about checkpoints. returned, busy, busy_batch: as in `ExecutorReport`.
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
    """Agent → executor: the fields of `ExecutorAnswer`, and the answers to requests for blobs and
    checkpoints."""

    batches: list[Batch] = []
    recorded: list[tuple[Large, Count]] = []
    dropped: list[Large] = []
    cancelled: list[tuple[Large, Count]] = []
    cancel_reasons: list[str] = []
    leave: bool = False
    blobs: list[BlobDone] = []
    saves: list[SaveDone] = []


# ---- users


class NewCallSet(CallMessage, frozen=True, kw_only=True):
    """`POST /v1/call-sets`. id: chosen by the client (20 characters, `core.ids`), so that a repeat
    changes nothing. count: total number of its calls, None: not known yet. args: arguments of the
    first calls. singles: the calls are submitted one by one, and no more are meant to come, so the
    set is complete even if it never gets a count."""

    id: str
    spec: FunctionSpec
    singles: bool = False
    count: Count | None = None
    args: Annotated[list[str], Meta(max_length=10_000)] = []


class MoreCalls(CallMessage, frozen=True, kw_only=True):
    """`POST /v1/call-sets/{id}/calls`. first: the index of the first added call; repeated indices
    change nothing. args: their arguments; without any, the request only shows that the client
    lives, because the set of a silent client is closed. count: the total number of calls, sent with
    the last of them. cut: with the count, why the set has fewer calls than the client intended."""

    first: Count
    cut: Annotated[str, Meta(max_length=1000)] = ""
    args: Annotated[list[str], Meta(max_length=10_000)] = []
    count: Count | None = None


class CallSetView(CallMessage, frozen=True, kw_only=True):
    """A call set and its counts.

    state: "open" while calls may be added or run, else "ended". running: executors have calls of
    the set; only the answer to a GET of the set tells this and the next two. time_limit_seconds:
    the limit of each call, null without one. time_limit_source: the layer that sets it: function,
    queue, project, cluster, environment, or calls (the queue's limit for calls). cut: why the set
    has fewer calls than its client intended; such a set has failed.
    """

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
    """The outcome of one call. state: a number of `CallState`. value: result or error as JSON
    text."""

    index: int
    state: int
    value: str
    attempts: int
    reason: str


class CallResults(CallMessage, frozen=True, kw_only=True):
    """The answer to `GET /v1/call-sets/{id}/results`.

    With `?first=&limit=&wait=`: the ended calls from `first` up to the first one that has not
    ended. With `?index=3,17,…&wait=`: those of these calls that have ended. With
    `?state=failed&first=`: the calls in a state. next: the `first` of the next request. ended: no
    further result will come.
    """

    results: list[CallResult]
    next: int = 0
    ended: bool = False


class CallsChange(CallMessage, frozen=True, kw_only=True):
    """`POST /v1/call-sets/{id}/cancel` and `…/retry`. indices: the calls to change; None: all that
    have not ended (cancel), or all that failed or were cancelled (retry). hard: a cancel ends
    running calls at once, with their executors."""

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

    job, offset: the executor in whose log the bytes stand, and their offset there. gap: number of
    bytes missing just before.
    """

    attempt: int
    job: str
    stream: Literal["stdout", "stderr"]
    offset: int
    data: bytes
    gap: int = 0


class CallWhyLine(CallMessage, frozen=True, kw_only=True):
    """One reason why a call does not go on, and what to do about it."""

    code: str
    message: str
    hint: str = ""


class CallView(CallMessage, frozen=True, kw_only=True):
    """`GET /v1/call-sets/{id}/calls/{index}`: one call, its failed attempts, and why it does not go
    on.

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
