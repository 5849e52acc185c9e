"""Values that go into a store and come out of it, besides the records of `core`."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Literal

import msgspec

from holdfast.core.arrays.arrays import Member
from holdfast.core.arrays.records import ArrayRecord, ScheduleRecord
from holdfast.core.arrays.schedules import Outcome, ScheduleSpec
from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.tally import Tally
from holdfast.core.placement.plan import Candidate, Capacity, QuotaLeft, Share
from holdfast.core.records import JobRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import JobSpec


class StoreValue(msgspec.Struct, frozen=True, kw_only=True):
    """The base of the values that go into a store and come out of it."""


class NodeOrigin(StoreValue, frozen=True, kw_only=True):
    """The workflow node that a job belongs to."""

    run: str
    node: int


class NewJob(StoreValue, frozen=True, kw_only=True):
    """A job to be written. `spec` still holds its secrets; the store keeps them apart.

    minted: secrets that Holdfast made (`core.run_seed`); they are stored with the user's, and left
    out when the specs of one idempotency key are compared. origin: the workflow node that waits for
    its end, which is posted to the outbox in the same transaction (POST-1).
    """

    id: str
    spec: JobSpec
    queue: str
    owner: str = ""
    minted: Mapping[str, str] = {}
    origin: NodeOrigin | None = None


class Submitted(StoreValue, frozen=True, kw_only=True):
    """A submission's job; not `created` when the idempotency key named an earlier job."""

    job: JobRecord
    created: bool


class NewSchedule(StoreValue, frozen=True, kw_only=True):
    """A schedule to be written. Its job still holds its secrets; the store keeps them apart."""

    id: str
    name: str
    owner: str = ""
    spec: ScheduleSpec
    queue: str
    next_at: datetime


class DueSchedule(StoreValue, frozen=True, kw_only=True):
    """A schedule whose time has come. secrets: the secrets of its job."""

    schedule: ScheduleRecord
    secrets: Mapping[str, str] = {}


class ScheduledRun(StoreValue, frozen=True, kw_only=True):
    """One run to be written, with its job where it is submitted."""

    due_at: datetime
    outcome: Outcome
    reason: str = ""
    job: NewJob | None = None


class ScheduledRuns(StoreValue, frozen=True, kw_only=True):
    """The decisions on the times of a schedule up to now, to be written.

    expected: the `next_at` that the decision read; the store writes only while it still holds, so a
    time is decided once (TIME-1). None for a run that a person ordered, which changes no time.
    cancel: the id of a running job to cancel for the new run.
    """

    schedule_id: str
    expected: datetime | None
    runs: tuple[ScheduledRun, ...]
    next_at: datetime | None
    cancel: str | None = None


class NewArray(StoreValue, frozen=True, kw_only=True):
    """An array to be written. member_ids: the ids of its members, in their order. digest: a hash in
    hex by which a repeat under the same idempotency key is recognised."""

    id: str
    spec: JobSpec
    queue: str
    owner: str = ""
    members: tuple[Member, ...]
    member_ids: tuple[str, ...]
    at_once: int | None = None
    digest: str


class ArraySubmitted(StoreValue, frozen=True, kw_only=True):
    """A submission's array; not `created` when the idempotency key named an earlier one."""

    array: ArrayRecord
    created: bool


class ArrayFilter(StoreValue, frozen=True, kw_only=True):
    """A filter for the list of arrays, newest first. states: arrays with a member in one of
    these. Each tuple: any of its values; an empty one leaves out none."""

    states: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    prefix: str | None = None
    before: str | None = None
    limit: int = 100


class Advanced(StoreValue, frozen=True, kw_only=True):
    """The result of a pass over arrays, or over jobs that wait for others: numbers of jobs. left:
    another pass may find more at once."""

    released: int = 0
    cancelled: int = 0
    left: bool = False


class JobFilter(StoreValue, frozen=True, kw_only=True):
    """A filter for the list of jobs, newest first. part: text within the name. since: time of the
    earliest submission. prefix: begin of the id. before: the last id of the page before. Each tuple:
    any of its values; an empty one leaves out none."""

    states: tuple[str, ...] = ()
    queues: tuple[str, ...] = ()
    projects: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    parent: str | None = None
    names: tuple[str, ...] = ()
    part: str | None = None
    since: datetime | None = None
    prefix: str | None = None
    labels: Mapping[str, str] = {}
    causes: tuple[str, ...] = ()
    min_retries: int | None = None  # by retries charged so far
    max_retries: int | None = None
    host_ids: tuple[str, ...] = ()  # jobs with a live task there
    array_id: str | None = None  # members of this array
    single: bool = False  # only jobs of no array
    executors: Literal["hide", "only"] | None = None  # jobs that Holdfast submits to run calls
    family: str | None = None  # executors of this family
    supervised: bool = False  # only jobs that a script supervises
    before: str | None = None
    limit: int = 100


class AdmissionSnapshot(StoreValue, frozen=True, kw_only=True):
    """Queued jobs in order (per queue at most `limit`, merged by priority then place), free room,
    and queue headroom.

    Where no job is queued, hosts and headroom may be left empty.

    headroom: number of further jobs that each queue with a limit may run. lowest_preemptible: the
    lowest priority of a job that may be preempted, or is being stopped. quotas: what each project
    may still start; a project without a quota is missing. shares: by project, for every project
    with queued or live jobs; empty where no project has a share. With shares, jobs that fit into
    their project's share come before the others.
    """

    candidates: tuple[Candidate, ...]
    hosts: tuple[Capacity, ...]
    headroom: Mapping[str, int]
    settings_rev: int
    lowest_preemptible: int | None = None
    quotas: Mapping[str, QuotaLeft] = {}
    shares: Mapping[str, Share] = {}


class TaskBeat(StoreValue, frozen=True, kw_only=True):
    """The last beat of a task, as its agent reports it. rate: its steps in a second. still_seconds:
    since its step last moved forward."""

    key: TaskKey
    step: int | None
    total: int | None
    age_seconds: float
    section: str | None = None
    rate: float | None = None
    still_seconds: float | None = None
    nan_beats: int = 0


class HostSync(StoreValue, frozen=True, kw_only=True):
    """One host's sync, as a store gets it.

    live: started or starting tasks, whose leases are renewed. started: tasks whose process runs.
    claimed: places kept for ranks of gangs, with rank 0's port (0: none). ended: ends of tasks.
    leaving: the agent says goodbye. faults: the host's faults, None where the sync has no news of
    them. takes: the host may take jobs at once for its free room (TAKE-1). room: a guess of the
    number of jobs that may fit, by the count of its tasks; the store knows what the tasks really
    hold. tallies: what live tasks spent their time on, for those that tell it with this sync. told:
    tasks whose orders left for the host after it made this report (REPEAT-2).
    """

    host_id: str
    incarnation: str
    live: tuple[TaskKey, ...] = ()
    started: tuple[TaskKey, ...] = ()
    claimed: tuple[tuple[TaskKey, int], ...] = ()
    ended: tuple[tuple[TaskKey, TaskFacts], ...] = ()
    beats: tuple[TaskBeat, ...] = ()
    leaving: bool = False
    faults: tuple[Hindrance, ...] | None = None
    takes: bool = False
    room: int = 0
    tallies: tuple[tuple[TaskKey, Tally], ...] = ()
    told: tuple[TaskKey, ...] = ()


class GangSeat(StoreValue, frozen=True, kw_only=True):
    """A rank of a gang: its host and that host's address, its devices, and rank 0's port."""

    rank: int
    host_id: str
    host_name: str
    address: str
    devices: tuple[int, ...] = ()
    port: int | None = None


class ClaimRow(StoreValue, frozen=True, kw_only=True):
    """A rank of a gang whose place its host is to keep until every rank has one (GANG-1)."""

    key: TaskKey
    attempt: int
    lease_ttl_seconds: float


class OfferedTask(StoreValue, frozen=True, kw_only=True, gc=False):
    """The fields of a task's row that an order needs."""

    key: TaskKey
    attempt: int
    host_id: str
    devices: tuple[int, ...]
    lease_ttl_seconds: float
    replaced: int = 0


class OfferedJob(StoreValue, frozen=True, kw_only=True):
    """The fields of a job's row that an order needs; they never change. Alike jobs may share one.

    spec: without secret values.
    """

    name: str
    queue: str
    project: str
    memory_bytes: int
    tasks: int
    spec: JobSpec
    cpu_slots: int = 0


class TaskOffer(StoreValue, frozen=True, kw_only=True, gc=False):
    """A reserved task for its host. Offered again at every sync until it is reported; each offer
    renews the lease.

    secrets: the job's secret variables. seats: the place of every rank of a gang, in order; empty
    for a job of one task. saved: its job may have checkpoints; False only where there is none for
    sure.
    """

    task: OfferedTask
    job: OfferedJob
    secrets: Mapping[str, str]
    seats: tuple[GangSeat, ...] = ()
    saved: bool = True


class PreemptRow(StoreValue, frozen=True, kw_only=True):
    """A task that must stop, repeated until its end is reported. notice_seconds: the time that it
    has to save, where that is not its grace alone."""

    key: TaskKey
    cause: Cause
    reason: str
    hard: bool
    operator_stop: bool
    notice_seconds: float | None = None


class LiveTask(StoreValue, frozen=True, kw_only=True):
    """A live task whose watch settings may have to be sent again."""

    key: TaskKey
    queue: str
    spec: JobSpec


class LogAppend(StoreValue, frozen=True, kw_only=True):
    """Bytes to append to a stream at an offset. keep_bytes: number of bytes of the stream to keep.
    ended: these are its last bytes. marked: the stream is an executor's, in which marks separate
    the outputs of its calls (`core.calls.marks`)."""

    key: TaskKey
    stream: str
    offset: int
    data: bytes
    ended: bool
    keep_bytes: int
    marked: bool = False


class DrainBegun(StoreValue, frozen=True, kw_only=True):
    """A drain that began.

    trigger_rank, host_id: the rank that failed, and its host; None where a request began the drain.
    stopping: number of tasks that must be ordered to stop. hosts: the hosts of these tasks.
    """

    job_id: str
    attempt: int
    epoch: int
    cause: Cause
    trigger_rank: int | None
    host_id: str | None
    stopping: int
    hosts: tuple[str, ...]
    reason: str


class TaskPreempted(StoreValue, frozen=True, kw_only=True):
    """The end of a task that was ordered to stop. lost: why it counts as ended without a report."""

    job_id: str
    attempt: int
    epoch: int
    rank: int
    host_id: str | None
    lost: str | None = None


DrainNews = DrainBegun | TaskPreempted
DrainListener = Callable[[Sequence[DrainNews]], None]


def drop_drain_news(news: Sequence[DrainNews]) -> None:
    """Drop the news, because no listener is set yet."""


class HostSynced(StoreValue, frozen=True, kw_only=True):
    """The answer to one `HostSync`.

    status: "ok"; "stale" (another incarnation has registered); "unknown" (no such host).
    offers, claims, preempts: tasks to start, places to keep, tasks to stop. renewed: tasks with the
    seconds of their new leases. lost: tasks that the host must end, because it has no right to run
    them. acked: reported ends that are on record. repeated: further ones, which the last answer to
    the host has acknowledged (REPEAT-1). refused: reported ends that are stale. absent: those of
    `lost` and `refused` that were not found, which is looked at again (DOUBT-1). succeeded: jobs
    that this sync finished. draining: jobs whose drain this sync began, for the completer. fenced:
    why the host is in error, so that it gets no work and no lease is renewed (CYCLE-1). reads:
    readers wait for output from its disk. sessions: users wait for links of sessions. settled: the
    host took what it could, and the leader could start no further job on it. posted: a job of a
    workflow is among `succeeded` (POST-1). awaited: another job may wait for one of `succeeded`, or
    for a place in its array.
    """

    host_id: str
    status: str
    offers: tuple[TaskOffer, ...] = ()
    claims: tuple[ClaimRow, ...] = ()
    opened: tuple[str, ...] = ()  # hosts with ranks of gangs whose start barrier this sync opened
    preempts: tuple[PreemptRow, ...] = ()
    renewed: tuple[tuple[TaskKey, float], ...] = ()
    lost: tuple[TaskKey, ...] = ()
    acked: tuple[TaskKey, ...] = ()
    repeated: tuple[TaskKey, ...] = ()
    refused: tuple[TaskKey, ...] = ()
    absent: tuple[TaskKey, ...] = ()
    succeeded: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()  # those of `succeeded` that were charged a retry before
    draining: tuple[str, ...] = ()
    fenced: str = ""
    reads: bool = False
    sessions: bool = False
    settled: bool = False
    posted: bool = False
    awaited: bool = False


class Seated(StoreValue, frozen=True, kw_only=True):
    """A member of a supervised job with a new host. number: count of the replacements of its rank
    in this attempt, this one included."""

    job_id: str
    rank: int
    epoch: int
    attempt: int
    number: int
    host_id: str


class DueMember(StoreValue, frozen=True, kw_only=True):
    """A rank of a supervised job that needs a decision.

    fallen: it has failed or was stopped; otherwise it has a new host and has not started there.
    seconds: how long it has been so.
    """

    job: JobRecord
    task: TaskRecord
    fallen: bool
    seconds: float = 0.0


class Reserved(StoreValue, frozen=True, kw_only=True):
    """A reserved job whose tasks do not all run yet. seconds: time since its reservation.
    ran_before: all tasks of an earlier attempt had started."""

    job: JobRecord
    seconds: float
    ran_before: bool = False

    @property
    def start_limit(self) -> str:
        """Return the name of the setting that bounds how long this start may take. A job that ran
        before gets a shorter time, because its image and data are on the hosts already."""
        return "recovery_timeout_seconds" if self.ran_before else "start_timeout_seconds"


class SettingsLayers(StoreValue, frozen=True, kw_only=True):
    """Every layer of settings in the store, as of `revision`. rules: the text of the operators'
    rules of classification."""

    revision: int
    cluster: dict[str, Value]
    queues: dict[str, dict[str, Value]]
    projects: dict[str, dict[str, Value]]
    rules: str


class Released(StoreValue, frozen=True, kw_only=True):
    """The result of one pass over the waiting jobs.

    started: number of jobs whose start time came. retries: number of retries dispatched. held:
    number of retries newly held by a kill switch. left: due retries are left for the next pass,
    because of the rate limit or because their rows were locked.
    """

    started: int = 0
    retries: int = 0
    held: int = 0
    left: bool = False


class DrainSnapshot(StoreValue, frozen=True, kw_only=True):
    """A draining job and all of its tasks. seconds: time since its drain began."""

    job: JobRecord
    tasks: tuple[TaskRecord, ...]
    seconds: float = 0.0


class Gauges(StoreValue, frozen=True, kw_only=True):
    """The values of the metrics, from one consistent read. `busy` counts live leases only."""

    jobs: Mapping[tuple[str, str], int]  # (queue, state) of unfinished jobs → count
    hosts: Mapping[str, int]  # state → count
    dead_hosts: int
    busy_cpu_slots: int
    busy_gpus: int
    total_cpu_slots: int
    total_gpus: int
    oldest_queued_seconds: float
    oldest_transaction_seconds: float
    webhook_deliveries: Mapping[str, int] = {}  # pending, dead
    ledger_ms: Mapping[tuple[str, str], int] = {}  # (unit, name) → of time whose names are settled
    open_ms: Mapping[tuple[str, str], int] = {}  # (unit, name) → of jobs that have not ended
