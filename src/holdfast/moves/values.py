"""What goes into a store and comes out of it, besides the records of `core`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import Candidate, Capacity, QuotaLeft
from holdfast.core.records import JobRecord, TaskRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import JobSpec


class StoreValue(msgspec.Struct, frozen=True, kw_only=True):
    """Root of the store's own values."""


class NewJob(StoreValue, frozen=True, kw_only=True):
    """A job to be written. `spec` still holds its secrets; the store keeps them apart.

    minted: secrets that are not its user's (`core.run_seed`): kept with the others, and no part of
    what a key is compared by.
    """

    id: str
    spec: JobSpec
    queue: str
    minted: Mapping[str, str] = {}


class Submitted(StoreValue, frozen=True, kw_only=True):
    """`created` is False when the idempotency key named a job that was there already."""

    job: JobRecord
    created: bool


class JobFilter(StoreValue, frozen=True, kw_only=True):
    """Which jobs to list, newest first. `before` is the id the last page ended on."""

    states: tuple[str, ...] = ()
    queue: str | None = None
    project: str | None = None
    name: str | None = None
    labels: Mapping[str, str] = {}
    cause: str | None = None
    min_retries: int | None = None  # by retries charged so far
    max_retries: int | None = None
    host_id: str | None = None  # jobs with a live task there
    before: str | None = None
    limit: int = 100


class AdmissionSnapshot(StoreValue, frozen=True, kw_only=True):
    """Queued jobs in order (per queue at most `limit`, merged by priority then place), free room,
    and queue headroom.

    Where nothing is queued anywhere, hosts and headroom may be left empty: nobody needs them.
    """

    candidates: tuple[Candidate, ...]
    hosts: tuple[Capacity, ...]
    headroom: Mapping[str, int]
    settings_rev: int
    lowest_preemptible: int | None = (
        None  # the lowest priority of a job that may be preempted, or is being stopped
    )
    quotas: Mapping[
        str, QuotaLeft
    ] = {}  # project → what it may still start; a project without a quota is missing


class TaskBeat(StoreValue, frozen=True, kw_only=True):
    """The last beat of a task, as its agent reports it."""

    key: TaskKey
    step: int | None
    total: int | None
    age_seconds: float
    section: str | None = None


class HostSync(StoreValue, frozen=True, kw_only=True):
    """One host's sync, as the store takes it."""

    host_id: str
    incarnation: str
    live: tuple[TaskKey, ...] = ()  # started or starting: their leases are renewed
    started: tuple[TaskKey, ...] = ()  # a process runs
    claimed: tuple[
        tuple[TaskKey, int], ...
    ] = ()  # places kept for ranks of gangs, and rank 0's port (0: none)
    ended: tuple[tuple[TaskKey, TaskFacts], ...] = ()
    beats: tuple[TaskBeat, ...] = ()
    leaving: bool = False


class GangSeat(StoreValue, frozen=True, kw_only=True):
    """A rank of a gang: its host, how others reach that, its devices there, and rank 0's port."""

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


class TaskOffer(StoreValue, frozen=True, kw_only=True):
    """A reserved task for its host. Offered again at every sync until it is reported; each offer
    renews the lease.

    seats: of a gang, every rank of it, by rank; empty for a job of one task.
    """

    task: TaskRecord
    job: JobRecord  # its `spec` without secret values
    secrets: Mapping[str, str]
    seats: tuple[GangSeat, ...] = ()


class PreemptRow(StoreValue, frozen=True, kw_only=True):
    """A task that must stop, repeated until its end is reported."""

    key: TaskKey
    cause: Cause
    reason: str
    hard: bool
    operator_stop: bool


class LiveTask(StoreValue, frozen=True, kw_only=True):
    """A live task whose watch settings may have to be sent again."""

    key: TaskKey
    queue: str
    spec: JobSpec


class LogAppend(StoreValue, frozen=True, kw_only=True):
    """Bytes of a stream at an offset, and how many of the stream are to be kept. ended: nothing
    follows."""

    key: TaskKey
    stream: str
    offset: int
    data: bytes
    ended: bool
    keep_bytes: int


class DrainBegun(StoreValue, frozen=True, kw_only=True):
    """A drain that began, whatever asked for it.

    trigger_rank, host_id: whose failure it was, and where; None where somebody asked. stopping: how
    many tasks have to be told to stop. hosts: where those are.
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
    """A task that had to stop has gone. lost: nothing of it was heard, and this is why it counts as
    gone."""

    job_id: str
    attempt: int
    epoch: int
    rank: int
    host_id: str | None
    lost: str | None = None


DrainNews = DrainBegun | TaskPreempted
TellDrains = Callable[[Sequence[DrainNews]], None]


def tell_nobody(news: Sequence[DrainNews]) -> None:
    """Nobody listens yet."""


class HostSynced(StoreValue, frozen=True, kw_only=True):
    """The answer to one `HostSync`.

    status: "ok"; "stale" (another incarnation has registered); "unknown" (no such host).
    succeeded: jobs this sync finished. draining: jobs it made drain; the completer has work.
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
    refused: tuple[TaskKey, ...] = ()
    succeeded: tuple[str, ...] = ()
    retried: tuple[str, ...] = ()  # those of `succeeded` that were charged a retry before
    draining: tuple[str, ...] = ()


class Seated(StoreValue, frozen=True, kw_only=True):
    """A member of a supervised job with a new place. number: among the replacements of its rank in
    this attempt."""

    job_id: str
    rank: int
    epoch: int
    attempt: int
    number: int
    host_id: str


class DueMember(StoreValue, frozen=True, kw_only=True):
    """A rank of a supervised job about which something is to be decided, and for how long it has
    been there.

    fallen: it has failed or was stopped; otherwise it has a new place since so long and has not
    started there.
    """

    job: JobRecord
    task: TaskRecord
    fallen: bool
    seconds: float = 0.0


class Reserved(StoreValue, frozen=True, kw_only=True):
    """A job whose tasks do not all run yet, and for how long it has been reserved. ran_before: an
    attempt before this one got past its start."""

    job: JobRecord
    seconds: float
    ran_before: bool = False

    @property
    def start_limit(self) -> str:
        """The setting that limits this start: what a start fetches first, a start after a run finds
        there."""
        return "recovery_timeout_seconds" if self.ran_before else "start_timeout_seconds"


class SettingsLayers(StoreValue, frozen=True, kw_only=True):
    """Every layer that is kept, as of `revision`. rules: the operators' rules of classification, as
    they wrote them."""

    revision: int
    cluster: dict[str, Value]
    queues: dict[str, dict[str, Value]]
    projects: dict[str, dict[str, Value]]
    rules: str


class Released(StoreValue, frozen=True, kw_only=True):
    """What one look at the waiting jobs did.

    started: jobs whose start time came. retries: retries dispatched. held: retries newly held by a
    kill switch.
    left: due retries that the rate limit left for the next call.
    """

    started: int = 0
    retries: int = 0
    held: int = 0
    left: bool = False


class DrainSnapshot(StoreValue, frozen=True, kw_only=True):
    """A draining job and all of its tasks. seconds: since its drain began."""

    job: JobRecord
    tasks: tuple[TaskRecord, ...]
    seconds: float = 0.0


class Gauges(StoreValue, frozen=True, kw_only=True):
    """What the metrics show, from one consistent read. `busy` comes from live leases only."""

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
