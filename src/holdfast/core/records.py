"""The records that every part shares: returned by the store, read by decisions, shown by the API.

Times are aware UTC datetimes of the *database's* clock, durations are seconds; none holds a secret.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.core.bundles.code import CodeRef
from holdfast.core.causes import Cause
from holdfast.core.dependencies import Wants
from holdfast.core.facts import TaskFacts
from holdfast.core.gpus import Gpu
from holdfast.core.host_checks import CheckKind, CheckResult, CheckVerdict, Measured
from holdfast.core.host_faults import Hindrance, list_able_labels
from holdfast.core.ids import TaskKey
from holdfast.core.retry import RetryPolicy
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import JobSpec
from holdfast.core.states import AttemptState, HostState, JobState, Outcome, TaskState


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Root of the records."""


_SHARED: dict[tuple[type, type[msgspec.Struct]], tuple[str, ...]] = {}
"""Names that two types share: looking for each again is 7 % of what the simulations of the tests cost."""


def shared_fields(source: object, kind: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the values of the fields that `kind` and `source` share, to make the one of the other.
    All values of a type have the same fields."""
    names = _SHARED.get((type(source), kind))
    if names is None:
        names = tuple(n for n in kind.__struct_fields__ if hasattr(source, n))
        _SHARED[type(source), kind] = names
    return {n: getattr(source, n) for n in names}


class RankCharges(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The failures that one rank of a gang has been charged, by budget (GANG-4)."""

    retries: int = 0
    watchdog: int = 0
    infra: int = 0


class JobFields(msgspec.Struct, kw_only=True):
    """The fields that a job's record shares with `moves.rows.JobRow`, the row that moves change.

    epoch: the fencing number of its current or last attempt; it grows with every admission and
    every finished drain.
    attempts: how many attempts it has had, with the running one; also the number of the last.
    reason: the sentence of the last decision.
    wait_cause, wait_until: while `waiting`: why ("start_time", "back_off", "retries_held",
    "dependency", "array", "parked") and until when. retry_at: when the pending retry is due; a kill switch may
    hold it longer.
    best_step: the furthest step of any attempt. no_progress: number of attempts in a row that got
    no further. drain_*: while `draining`, why, since when, and how long its tasks have to save before
    they are killed (None: their grace). trigger_rank: the rank whose failure
    began the drain.
    retries_charged … infra_charged: failures charged to each budget, over all ranks. rank_charges:
    the charges of each rank of a gang, by its number as text.
    start_failures: number of starts in a row that failed before every task ran. infra_in_row:
    number of infrastructure failures in a row.
    avoid_hosts: ids of hosts that are used only where no other fits.
    step, total, beat_at: the progress and time of its last beat.
    array_id, array_index: the array that it is a member of, and its index there.
    revision: number of changes of the row.
    """

    id: str
    project: str
    queue: str
    state: JobState
    reason: str
    tasks: int
    epoch: int
    attempts: int
    retries_charged: int = 0
    watchdog_charged: int = 0
    infra_charged: int = 0
    avoid_hosts: tuple[str, ...] = ()
    wait_cause: str | None = None
    wait_until: datetime | None = None
    retry_at: datetime | None = None
    best_step: int | None = None
    no_progress: int = 0
    rank_charges: dict[str, RankCharges] = {}
    start_failures: int = 0
    infra_in_row: int = 0
    drain_cause: Cause | None = None
    drain_reason: str | None = None
    drain_since: datetime | None = None
    drain_notice_seconds: float | None = None
    trigger_rank: int | None = None
    outcome: Outcome | None = None
    cause: Cause | None = None
    exit_code: int | None = None
    step: int | None = None
    total: int | None = None
    beat_at: datetime | None = None
    created_at: datetime
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    array_id: str | None = None
    array_index: int | None = None
    revision: int = 0

    @property
    def counted_retries(self) -> int:
        """Return the number of failures that were charged to the job's retries; of a gang, that of
        the rank with the most, because each rank has its own count."""
        if self.tasks == 1:
            return self.retries_charged
        return max((charged.retries for charged in self.rank_charges.values()), default=0)

    @property
    def was_retried(self) -> bool:
        """Return whether one of the job's attempts followed one that was charged to a budget."""
        charged = self.retries_charged or self.watchdog_charged or self.infra_charged
        return self.attempts > 1 and charged > 0


class JobRecord(JobFields, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec allows it
    """A job. owner: the user whose token submitted it; "" for work from before there were owners, and
    for jobs that Holdfast submits itself. rate, moved_at: while it runs, its steps in a second of the
    last five minutes, and when its step last moved forward."""

    name: str
    owner: str = ""
    priority: int
    gpus: int
    cpu_slots: int
    memory_bytes: int
    labels: dict[str, str]
    spec: JobSpec
    rate: float | None = None
    moved_at: datetime | None = None


class TaskFields(msgspec.Struct, kw_only=True):
    """The fields that a task's record shares with `moves.rows.TaskRow`, the row that moves change.

    offered_at: the time at which its agent was first ordered to run it. claimed_at: the time at
    which its agent confirmed that it keeps a place for it. barrier: every rank of the gang has a
    place, so it may start (GANG-1). port: rank 0's port for the rendezvous.
    nan_beats: number of losses in a row that were NaN or infinite, as its beats told.
    replaced: number of times that another host took over this rank of a supervised job; the rank
    then has an epoch of its own (MEMBER-1). reserved_at: the reservation of a replacement.
    ready_at: while `blocked`, the time from which it may be placed; None where it is parked.
    start_failures: failed starts of this rank in a row, before its present place.
    stop_cause, stop_reason: why this task alone was stopped, or is parked.
    """

    job_id: str
    rank: int
    epoch: int
    attempt: int
    state: TaskState
    host_id: str | None = None
    host_name: str | None = None
    incarnation: str | None = None
    devices: tuple[int, ...] = ()
    lease_ttl_seconds: float = 300.0
    lease_until: datetime | None = None
    offered_at: datetime | None = None
    claimed_at: datetime | None = None
    barrier: bool = True
    port: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    step: int | None = None
    total: int | None = None
    beat_at: datetime | None = None
    first_beat_at: datetime | None = None
    rate: float | None = None
    moved_at: datetime | None = None
    section: str | None = None
    nan_beats: int = 0
    facts: TaskFacts | None = None
    replaced: int = 0
    reserved_at: datetime | None = None
    ready_at: datetime | None = None
    start_failures: int = 0
    stop_cause: Cause | None = None
    stop_reason: str | None = None

    @property
    def key(self) -> TaskKey:
        """Return the key that reports about this task carry."""
        return TaskKey(self.job_id, self.rank, self.epoch)


class TaskRecord(TaskFields, frozen=True, kw_only=True):  # type: ignore[misc]  # msgspec allows it
    """One rank of the current attempt, while the job is reserved, running or draining."""

    @property
    def is_parked(self) -> bool:
        """Return whether the task gets another host only when a person says so (MEMBER-5)."""
        return self.state is TaskState.BLOCKED and self.ready_at is None


class MemberRecord(Record, frozen=True, kw_only=True):
    """The end of one rank of an ended attempt; kept in the attempt's row.

    trigger: it began the fall. cascade: it fell because another rank did.
    """

    rank: int
    host: str | None
    state: TaskState
    exit_code: int | None = None
    cause: Cause | None = None
    rule: str | None = None
    message: str = ""
    evidence: dict[str, str | int | float | bool | None] = {}
    trigger: bool = False
    cascade: bool = False
    facts: TaskFacts | None = None


class AttemptRecord(Record, frozen=True, kw_only=True):
    """One execution of the whole job. (job_id, number) is unique; `parent` is the number before it.

    retry_count: retries charged before it began. policy: the retry policy that decided on its end.
    next_at: the time at which the next attempt was due, where one was to follow. road: "leader"
    where the leader chose its hosts, "host" where its host took it (TAKE-1). code: what it ran, the
    same for all attempts of a job. first_beat_at: while it goes on, the first beat of any rank.
    """

    job_id: str
    number: int
    parent: int | None
    epoch: int
    state: AttemptState
    outcome: Outcome | None = None
    cause: Cause | None = None
    rule: str | None = None
    charged_to: str | None = None
    retry_count: int = 0
    policy: RetryPolicy | None = None
    next_at: datetime | None = None
    exit_code: int | None = None
    reason: str = ""
    host: str | None = None
    host_ids: tuple[str, ...] = ()
    road: Literal["leader", "host"] = "leader"
    trigger_rank: int | None = None
    members: tuple[MemberRecord, ...] = ()
    step: int | None = None
    total: int | None = None
    first_beat_at: datetime | None = None
    has_forensics: bool = False
    code: CodeRef | None = None
    reserved_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None


class WaitRecord(Record, frozen=True, kw_only=True):
    """A parent whose end a job waits for. parent, name, state: the parent's, a job or an array."""

    parent: str
    wants: Wants
    name: str
    state: JobState


class CheckpointRecord(Record, frozen=True, kw_only=True):
    """The checkpoint that one rank saved for the next attempt. sha256: in hex; size: in bytes."""

    job_id: str
    rank: int
    number: int
    epoch: int
    attempt: int
    step: int | None = None
    size: int
    sha256: str
    created_at: datetime


class HostRecord(Record, frozen=True, kw_only=True):
    """A host. `busy_*` come from live leases, never from the host's own report.

    incarnation: the id of its agent's start, "" before its first call. offer, usd_per_hour: offer
    and price of a host that a pool rents. memory_limits: how a task over its memory is ended: by
    the kernel ("group": a control group of the task's own) or by the agent's watch ("watch"); ""
    before its first call. faults: abilities that it lacks now. provider_says: its
    provider's last message about a machine that starts.
    """

    id: str
    name: str
    pool: str
    state: HostState
    reason: str
    incarnation: str
    queues: tuple[str, ...]
    labels: dict[str, str]
    cpu_slots: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    address: str
    version: str
    probe: str
    busy_cpu_slots: int = 0
    busy_memory_bytes: int = 0
    busy_gpus: tuple[int, ...] = ()
    running: int = 0
    registered_at: datetime
    memory_limits: str = ""
    faults: tuple[Hindrance, ...] = ()
    heartbeat_at: datetime | None = None
    flagged_dead_at: datetime | None = None
    drain_deadline: datetime | None = None
    offer: str | None = None
    usd_per_hour: float | None = None
    provider_says: str = ""

    @property
    def able_labels(self) -> Mapping[str, str]:
        """Return the host's labels without those of apps that it cannot run now (ABLE-1)."""
        return list_able_labels(self.labels, self.faults)


class HostCheckRecord(Record, frozen=True, kw_only=True):
    """One check of a host: its measurements, and the verdict on them."""

    number: str
    incarnation: str
    at: datetime
    kind: CheckKind
    verdict: CheckVerdict
    message: str
    results: tuple[CheckResult, ...] = ()
    measured: Measured = Measured()


class QueueRecord(Record, frozen=True, kw_only=True):
    """A queue: its own settings, and the number of its jobs by state. hard: its pause stopped jobs."""

    name: str
    settings: dict[str, Value]
    paused_at: datetime | None = None
    paused_reason: str = ""
    hard: bool = False
    waiting: int = 0
    queued: int = 0
    running: int = 0
    created_at: datetime


class ProjectRecord(Record, frozen=True, kw_only=True):
    """A project: retry defaults, quotas, and their use. It exists once a job names it.

    running: number of live jobs. gpus: GPUs that they hold. cpu_slots: CPU slots that live jobs
    without GPUs hold. unfinished: number of jobs that have not ended. spent_usd: dollars spent in
    the month `spent_month` (as 2026-11, "" before the first count), as counted last. held: why no
    job of it starts, because its budget is spent; "" where jobs may start.
    """

    name: str
    settings: dict[str, Value]
    running: int = 0
    gpus: int = 0
    cpu_slots: int = 0
    unfinished: int = 0
    created_at: datetime | None = None
    spent_month: str = ""
    spent_usd: float = 0.0
    held: str = ""


class EventRecord(Record, frozen=True, kw_only=True):
    """One line of the append-only record. `id` is opaque and sorts in the order readers see events."""

    id: str
    at: datetime
    kind: str
    job_id: str | None = None
    attempt: int | None = None
    epoch: int | None = None
    rank: int | None = None
    host_id: str | None = None
    queue: str | None = None
    project: str | None = None
    message: str = ""
    data: dict[str, Any] = {}


class TokenRecord(Record, frozen=True, kw_only=True):
    """A token as it may be shown, without its secret. user: the owner of jobs that are submitted
    with it. host_id: the one host of a pool that may use a join token; None: any. reach: the projects
    into whose jobs of other users it may come; "*" is every project (REACH-1)."""

    id: str
    role: str  # admin | submit | read | join
    name: str
    user: str = ""
    created_at: datetime
    expires_at: datetime | None = None
    used_at: datetime | None = None
    revoked_at: datetime | None = None
    host_id: str | None = None
    reach: tuple[str, ...] = ()

    @property
    def acts_for(self) -> str:
        """Return the user whose work the token's holder submits and may change."""
        return self.user or self.name or self.id


class JobTokenRecord(TokenRecord, frozen=True, kw_only=True):
    """The token of a running task, with which its program submits work for the job's owner, in the
    job's project (JOB-TOKEN-1). job_id: the job, or the set of a running call."""

    job_id: str
    project: str


class LogStreamRecord(Record, frozen=True, kw_only=True):
    """One output stream of one task of an attempt: its size, and how many bytes of it are kept."""

    job_id: str
    attempt: int
    rank: int
    stream: str  # stdout | stderr
    size: int  # bytes written by the task so far, dropped ones included
    kept: int
    ended: bool


class LogChunk(Record, frozen=True, kw_only=True):
    """Bytes `[offset, offset + len(data))` of a stream. A gap before them means dropped bytes. at:
    the time at which the controller received them; None where only a host has them yet."""

    stream: str
    rank: int
    offset: int
    data: bytes
    at: datetime | None = None
