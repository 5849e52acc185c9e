"""The REST API's bodies, shared by the controller that writes them and the SDK that reads them.

Records (`core.records`) are sent as they are; this module adds what only the API has. The operations
stand in `wire.operations`. Errors are RFC 9457 problems (`application/problem+json`). Lists are pages:
`{"items": [...], "next": cursor|null}`.
"""

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.causes import Cause
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.records import HostRecord, JobRecord
from holdfast.core.retry import RetryPolicy
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import JobSpec, Name
from holdfast.wire.forecasts.values import JobForecast, WouldStart

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_BATCH_JOBS = 1000


class ApiBody(msgspec.Struct, frozen=True, kw_only=True):
    """Root of the API's values."""


class Problem(ApiBody, frozen=True, kw_only=True, omit_defaults=True):
    """RFC 9457. `code` is the stable word, `detail` the sentence, `field` points into the body."""

    type: str = "about:blank"
    title: str = ""
    status: int = 500
    detail: str = ""
    code: str = "error"
    field: str | None = None
    instance: str | None = None


class ServerProblem(ApiBody, frozen=True):
    """Something that is wrong with a controller. part: what it is about, as `blobs`."""

    part: str
    sentence: str
    mend: str


class ServerView(ApiBody, frozen=True, kw_only=True):
    """The controller that answered. clock: the time there as it answered. problems: what is wrong
    with it, which its operator should mend."""

    version: str
    clock: datetime
    problems: list[ServerProblem] = []


class BatchRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Jobs submitted together: all or none."""

    jobs: Annotated[list[JobSpec], Meta(min_length=1, max_length=MAX_BATCH_JOBS)]


class CancelRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hard` kills without TERM and grace."""

    reason: Annotated[str, Meta(max_length=512)] = ""
    hard: bool = False


class RetryRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's retry. counted: it uses one retry of the present budget; otherwise budgets begin
    anew. from_scratch: its checkpoints are forgotten; otherwise each rank starts from its
    newest."""

    counted: bool = False
    from_scratch: bool = False


JobIds = Annotated[list[str], Meta(min_length=1, max_length=MAX_BATCH_JOBS)]


class CancelManyRequest(CancelRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cancel of many jobs; each is handled by itself."""

    ids: JobIds


class RetryManyRequest(RetryRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person's retry of many jobs; each is handled by itself."""

    ids: JobIds


class JobOutcome(ApiBody, frozen=True, kw_only=True):
    """The result for one of many jobs: the job as it is now, or why the change was refused."""

    id: str
    job: JobRecord | None = None
    problem: Problem | None = None


class RetryState(ApiBody, frozen=True, kw_only=True):
    """The position of a job in its chain of retries. sentence: "attempt 2 of 4, next at 12:03:20".

    attempt: number of the present attempt, counting only attempts that cost a retry (`attempts` of
    the job counts all). of: most such attempts, 1 + max_retries. retries_left: number of retries
    left. next_at: the time of the next retry. held: the kill switch that holds it back, if any.
    """

    sentence: str
    attempt: int
    of: int
    retries_left: int
    next_at: datetime | None = None
    held: str | None = None


class ChainLink(ApiBody, frozen=True, kw_only=True):
    """One attempt in a chain of retries. retry_cause: the cause of the end of the attempt
    before."""

    number: int
    parent: int | None
    retry_count: int
    retry_cause: str | None = None
    outcome: str | None = None
    cause: str | None = None
    charged_to: str | None = None
    reason: str = ""
    host: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    next_at: datetime | None = None


class JobLimits(ApiBody, frozen=True, kw_only=True):
    """The time limit of a job and its expected duration. Null: no limit, or not known.

    sentence: how it is stopped, for a hang too. time_limit_source: the layer that sets the limit:
    job, queue, project, cluster or environment. expected_source: job, or history (the last jobs of
    its name). backfills: it may use room that is held back for larger jobs, because its limit or
    expectation tells when it ends. stops_at, expected_at: while it runs, the times of both ends.
    """

    time_limit_seconds: float | None = None
    time_limit_source: str = ""
    stops_at: datetime | None = None
    expected_seconds: float | None = None
    expected_source: str = ""
    expected_at: datetime | None = None
    backfills: bool = False
    sentence: str = ""


class SubmittedJob(JobRecord, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec allows it
    """A job, as the answer to its submission."""

    limits: JobLimits = JobLimits()


class JobView(JobRecord, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec allows it
    """A job with its chain, and the retry policy in force or, once it has ended, of its end.

    retry_count: number of retries made or scheduled, in a gang the most of any rank. retry_cause:
    the cause for which another attempt followed the last failure, None before one. children: ids of
    the newest jobs that it submitted itself, four at most.
    """

    retry_count: int = 0
    max_retries: int = 0
    retry_policy: RetryPolicy | None = None
    retry_cause: Cause | None = None
    retry_state: RetryState | None = None
    retry_chain: tuple[ChainLink, ...] = ()
    limits: JobLimits = JobLimits()
    children: tuple[str, ...] = ()


class PolicyField(ApiBody, frozen=True, kw_only=True):
    """One field of the policy in force. source: job, project, cluster, environment or default."""

    field: str
    value: Value | list[str]
    source: str


class PolicyView(ApiBody, frozen=True, kw_only=True):
    """The retry policy in force for a job, and where each of its fields comes from."""

    policy: RetryPolicy
    fields: list[PolicyField]
    held: str | None = None


class RetryHold(ApiBody, frozen=True, kw_only=True):
    """One kill switch that holds retries. source: cluster, environment or project."""

    source: str
    project: str | None = None
    reason: str = ""


class RetriesOf(ApiBody, frozen=True, kw_only=True):
    """The numbers of jobs of one project that wait for a retry."""

    project: str
    backing_off: int = 0
    held: int = 0


class RetriesView(ApiBody, frozen=True, kw_only=True):
    """The retries of the cluster. enabled: no kill switch holds them. rate_limit: retries
    dispatched per second at most, null without a limit."""

    enabled: bool
    holds: list[RetryHold]
    backing_off: int
    held: int
    rate_limit: float | None
    projects: list[RetriesOf]


class RulesView(ApiBody, frozen=True, kw_only=True):
    """The operators' rules of classification: the text, and the rules read from it.

    problem: why the text cannot be read, where another version wrote it; then no rule is in force.
    outdated: the rules whose patterns an earlier version took and RE2 cannot read; they stay in
    force until they are changed.
    """

    text: str
    rules: list[OperatorRule]
    revision: int
    problem: str = ""
    outdated: list[str] = []


class RulesRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules that replace all present ones, as TOML; an empty text removes them."""

    text: Annotated[str, Meta(max_length=64 * 1024)]


class RulesTrial(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An end to be classified, as an agent reports it. text: rules to try instead."""

    exit_code: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=1, le=64)] | None = None
    log: Annotated[str, Meta(max_length=16_384)] = ""
    start_error: Annotated[str, Meta(max_length=4096)] | None = None
    pull_error: Annotated[str, Meta(max_length=4096)] | None = None
    runtime_error: Annotated[str, Meta(max_length=4096)] | None = None
    text: Annotated[str, Meta(max_length=64 * 1024)] | None = None


class RulesFinding(ApiBody, frozen=True, kw_only=True):
    """The result of a trial: the cause of the end, the rule that found it, and its evidence.

    charged_to: the budget that pays: retries, infra, watchdog, nothing, or never (it is not
    retried).
    """

    cause: str
    rule: str
    message: str
    charged_to: str
    exit_code: int | None = None
    evidence: dict[str, str | int | float | bool | None] = {}
    never_retry: bool = False
    avoid_host: bool = False


class PauseRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`hard` also stops running jobs (operator-stop watchdog, exit code 79; requeued at no charge)."""

    reason: Annotated[str, Meta(max_length=512)] = ""
    hard: bool = False


class HostActionRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An operator's action on a host. hard: running work is stopped too. deadline_seconds: with
    drain, how long running work may go on.

    scale_down: with drain, the host is not needed any more, so running work is stopped now, or at
    the deadline, with its grace and the cause `scaled_down`, charged to nothing.
    """

    deadline_seconds: Annotated[float, Meta(gt=0, le=31_536_000)] | None = None
    scale_down: bool = False
    reason: Annotated[str, Meta(max_length=512)] = ""
    hard: bool = False


class SettingsPatch(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings to set (null or "off": no limit), and names to unset, so that the layer below
    holds."""

    set: Annotated[dict[Name, Value], Meta(max_length=128)] = {}
    unset: Annotated[list[Name], Meta(max_length=128)] = []


class PriceRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A price of GPU-hours. host: a host's name; "" for all that name no price themselves. gpu_hour_usd:
    None takes the price away. since: Unix seconds from which it holds, not after now; None for now.
    dry_run: nothing is written, and the answer says what the price would do."""

    host: Annotated[str, Meta(max_length=256)] = ""
    gpu_hour_usd: Annotated[float, Meta(ge=0, le=1e6)] | None
    since: Annotated[int, Meta(ge=0, le=32_503_680_000)] | None = None
    dry_run: bool = False


class TokenRequest(ApiBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new token. A `join` token is spent by its first use and lives an hour by default. user: the
    owner of jobs submitted with it, by default the token's name, else the admin's own user. reach:
    the projects into whose jobs of other users it may come (REACH-1)."""

    role: Literal["admin", "submit", "read", "join"]
    name: Annotated[str, Meta(max_length=128, pattern=r"^[^\x00-\x1f\x7f]*$(?!\n)")] = ""
    user: Annotated[
        str, Meta(max_length=128, pattern=r"^([^\x00-\x1f\x7f@][^\x00-\x1f\x7f]*)?$(?!\n)")
    ] = ""
    expires_seconds: Annotated[float, Meta(gt=0, le=10 * 366 * 86_400)] | None = None
    reach: Annotated[list[Name | Literal["*"]], Meta(max_length=256)] = []


class TokenCreated(ApiBody, frozen=True, kw_only=True):
    """A new token with its secret, which is shown this once."""

    id: str
    role: str
    name: str
    user: str = ""
    secret: str
    expires_at: datetime | None = None
    reach: tuple[str, ...] = ()


class SignInView(ApiBody, frozen=True, kw_only=True):
    """A browser that is signed in, without its secrets. user, role: of the token by which it acts.
    browser: as the browser names itself."""

    id: str
    token_id: str
    role: str
    user: str
    browser: str = ""
    address: str = ""
    created_at: datetime
    expires_at: datetime


class SignInLink(ApiBody, frozen=True, kw_only=True):
    """A link that signs one browser in, once, as the caller's token. urls: the link under every
    name of the dashboard, the first of which is `url`."""

    url: str
    urls: list[str]
    expires_at: datetime


class WhyLine(ApiBody, frozen=True, kw_only=True):
    """One reason why a job does not go on, and what to do about it."""

    code: str  # waiting_start_time, back_off, queue_paused, max_running, no_host_serves_queue, no_room, behind, draining, running, ended, …
    message: str
    hint: str = ""


class Why(ApiBody, frozen=True, kw_only=True):
    """Why a job is in its state: the last decision, and every reason why it does not go on. forecast,
    would_start: of a job that waits for room."""

    job_id: str
    state: str
    summary: str
    lines: list[WhyLine]
    forecast: JobForecast | None = None
    would_start: list[WouldStart] = []


class ForensicsView(ApiBody, frozen=True, kw_only=True):
    """The evidence gathered before a kill. epoch: which process of a replaced rank it is about."""

    attempt: int
    rank: int
    reason: str
    seconds: float
    sections: dict[str, str]
    epoch: int = 0


class HostView(HostRecord, frozen=True, kw_only=True):
    """A host and its slots: {"cpu": {"total", "busy"}, "gpu": {"total", "busy"}}, from live leases.

    models: models in the memory of its executors, as far as this controller has had reports.
    """

    slots: dict[str, dict[str, int]] = {}  # noqa: RUF012  msgspec copies an empty default
    dead: bool = False
    models: tuple[str, ...] = ()
