"""The operations on jobs.

Logs: `follow=0` gives the bytes (`both`: stdout, then stderr) and the header Holdfast-Log-Size;
`follow=1` and `full=1` give events `log` (LogLine), `state` and `end` (JobRecord), `full` with the bytes
that the controller did not keep, fetched from the host. A checkpoint's bytes come with the headers
Holdfast-Sha256, Holdfast-Checkpoint-Number and -Step, and are sent with Holdfast-Sha256 where the
sender knows it; `epoch` is of the attempt that is on, and is left out where none is.
"""

from holdfast.core.logs.likeness import ErrorGroup
from holdfast.core.readings.records import JobTelemetryView
from holdfast.core.records import (
    AttemptRecord,
    CheckpointRecord,
    JobRecord,
    LogStreamRecord,
    TaskRecord,
)
from holdfast.core.settings.resolve import Effective
from holdfast.core.spec import JobSpec
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.wire.api import (
    BatchRequest,
    CancelManyRequest,
    CancelRequest,
    ForensicsView,
    JobOutcome,
    JobView,
    PolicyView,
    RetryManyRequest,
    RetryRequest,
    SubmittedJob,
    Why,
)
from holdfast.wire.forecasts.values import JobForecast
from holdfast.wire.operations.operation import Operation, PageOf, Query, Role, reads
from holdfast.wire.operations.queries import (
    AttemptQuery,
    AttemptsQuery,
    JobsQuery,
    LogSearchQuery,
    LogsQuery,
    Number,
    Rank,
    RanksTelemetryQuery,
    Step,
)

JOB = "/v1/jobs/{id}"
_BYTES = ("application/octet-stream",)
_KEY = {
    "Idempotency-Key": "A second submission with this key in the same project returns the first "
    "job."
}
_SSE = ("text/event-stream",)


class CheckpointQuery(Query, frozen=True, kw_only=True):
    """A rank's newest checkpoint, its newest of an epoch, or one by its number. step: the training
    step of an uploaded checkpoint (PUT only)."""

    rank: Rank = 0
    epoch: Number | None = None
    number: Number | None = None
    step: Step | None = None


class WhichCheckpointsQuery(Query, frozen=True, kw_only=True):
    """The checkpoints to delete: one rank's, or the one with this number; with neither, all of the
    job."""

    rank: Rank | None = None
    number: Number | None = None


SUBMIT_JOB = Operation(
    "POST", "/v1/jobs", Role.SUBMIT, "Submit a job.", body=JobSpec, headers=_KEY,
    answers={201: SubmittedJob, 200: SubmittedJob}
)  # fmt: skip
SUBMIT_BATCH = Operation(
    "POST", "/v1/jobs/batch", Role.SUBMIT, "Submit many jobs, all or none.", body=BatchRequest,
    answers={201: PageOf(JobRecord)}
)  # fmt: skip
CANCEL_JOBS = Operation(
    "POST", "/v1/jobs/cancel", Role.SUBMIT, "Cancel many jobs; a refused one holds up no other.",
    body=CancelManyRequest, answers={200: PageOf(JobOutcome)}
)  # fmt: skip
RETRY_JOBS = Operation(
    "POST", "/v1/jobs/retry", Role.SUBMIT,
    "Another attempt for each of many jobs; a refused one holds up no other.",
    body=RetryManyRequest, answers={200: PageOf(JobOutcome)}, repeatable=False
)  # fmt: skip
LIST_JOBS = reads("/v1/jobs", "Jobs, newest first.", PageOf(JobRecord), JobsQuery)
GET_JOB = reads(JOB, "One job, its chain of attempts and where it stands in it.", JobView)
LIST_ATTEMPTS = reads(
    JOB + "/attempts", "Its attempts, oldest first.", PageOf(AttemptRecord), AttemptsQuery
)  # fmt: skip
GET_POLICY = reads(
    JOB + "/policy", "Its retry policy, and where each field comes from.", PolicyView
)  # fmt: skip
LIST_TASKS = reads(JOB + "/tasks", "The tasks of its current attempt.", PageOf(TaskRecord))
LIST_SUSPECTS = reads(
    JOB + "/suspects", "Slow and wrong ranks of all its attempts, with the evidence.",
    PageOf(SuspectRecord)
)  # fmt: skip
GET_WHY = reads(JOB + "/why", "Why it is where it is, and what to do.", Why)
LIST_FORECASTS = reads(
    "/v1/forecasts", "The first queued jobs in their order, and when each should start.",
    PageOf(JobForecast)
)  # fmt: skip
LIST_SETTINGS = reads(JOB + "/settings", "Every setting in force for it.", PageOf(Effective))
GET_JOB_TELEMETRY = reads(
    JOB + "/telemetry", "The processors and the memory of its ranks, now and lately.",
    JobTelemetryView, RanksTelemetryQuery
)  # fmt: skip
LIST_FORENSICS = reads(
    JOB + "/forensics", "What was gathered before its kills.", PageOf(ForensicsView), AttemptQuery
)  # fmt: skip
GET_LOGS = Operation(
    "GET", JOB + "/logs", Role.READ, "Its output: bytes, or a stream with `follow=1`.",
    query=LogsQuery, answers={200: None}, media=_BYTES + _SSE
)  # fmt: skip
LIST_STREAMS = reads(
    JOB + "/logs/streams", "How far each stream goes.", PageOf(LogStreamRecord), AttemptQuery
)  # fmt: skip
LIST_ERRORS = reads(
    JOB + "/errors", "The error lines of all its ranks, grouped by their likeness.",
    PageOf(ErrorGroup), AttemptQuery
)  # fmt: skip
SEARCH_LOGS = Operation(
    "GET", "/v1/logs", Role.READ, "Lines of logs that match a pattern, as a stream of events.",
    query=LogSearchQuery, answers={200: None}, media=_SSE
)  # fmt: skip
LIST_CHECKPOINTS = reads(
    JOB + "/checkpoints", "What is kept of what its tasks saved.", PageOf(CheckpointRecord)
)  # fmt: skip
GET_CHECKPOINT = Operation(
    "GET", JOB + "/checkpoint", Role.READ, "The bytes of a checkpoint.", query=CheckpointQuery,
    answers={200: None}, media=_BYTES
)  # fmt: skip
PUT_CHECKPOINT = Operation(
    "PUT", JOB + "/checkpoint", Role.SUBMIT,
    "Leave a checkpoint for the next attempt; the body is the bytes.", query=CheckpointQuery,
    raw=True, media_in=_BYTES, answers={201: CheckpointRecord}, owned="job"
)  # fmt: skip
DELETE_CHECKPOINTS = Operation(
    "DELETE", JOB + "/checkpoints", Role.SUBMIT,
    "Forget checkpoints: all, those of one rank, or one.", query=WhichCheckpointsQuery,
    answers={204: None}, owned="job", repeatable=False
)  # fmt: skip
CANCEL_JOB = Operation(
    "POST", JOB + "/cancel", Role.SUBMIT, "Cancel it.", body=CancelRequest, optional_body=True,
    answers={200: JobRecord, 202: JobRecord}, owned="job"
)  # fmt: skip
RETRY_JOB = Operation(
    "POST", JOB + "/retry", Role.SUBMIT,
    "Another attempt for a job that failed or was cancelled; of one that runs, another try for its parked members.",
    body=RetryRequest, optional_body=True, answers={200: JobRecord}, owned="job", repeatable=False
)  # fmt: skip
