"""The rows of the memory store, and its transaction: load copies, apply moves, write them back at
once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from holdfast.core.arrays.records import ScheduleRecord, ScheduleRunRecord
from holdfast.core.calls.marks import CallSpan
from holdfast.core.causes import Cause
from holdfast.core.dependencies import Wants
from holdfast.core.fleet.actions import CycleSummary
from holdfast.core.fleet.records import PoolRecord
from holdfast.core.gpus import Gpu
from holdfast.core.host_faults import (
    Hindrance,
    is_set_aside,
    list_able_labels,
    list_held,
    list_lacking,
)
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import Capacity
from holdfast.core.records import (
    AttemptRecord,
    CheckpointRecord,
    EventRecord,
    HostCheckRecord,
    HostRecord,
    HostTelemetryRecord,
    JobFields,
    JobRecord,
    TaskRecord,
    TokenRecord,
    shared_fields,
)
from holdfast.core.settings.resolve import BUILTIN_QUEUES, Value
from holdfast.core.spec import JobSpec
from holdfast.core.states import HostState, InstanceState, JobState
from holdfast.core.workflows.advance import NodeRow, RunRow
from holdfast.core.workflows.values import NodeSpec
from holdfast.moves.calls.host_calls import HostCalls
from holdfast.moves.jobs.moves import LIVE_JOB_STATES, Moves, last_beat
from holdfast.moves.jobs.quotas import Use
from holdfast.moves.rows import AttemptChange, JobRow, NewEvent, TaskRow
from holdfast.moves.values import DrainListener, Seated, drop_drain_news
from holdfast.moves.workflows import Post
from holdfast.store.memory.call_rows import MemoryCallSet
from holdfast.wire.agent import Forensics, LogReadAnswer, LogReadOrder

UNFINISHED = (JobState.WAITING, JobState.QUEUED, *LIVE_JOB_STATES)


class MemoryJob(msgspec.Struct, kw_only=True):
    """A job: `row` with the columns that moves change, and the columns that never change."""

    row: JobRow
    name: str
    owner: str = ""
    priority: int
    gpus: int
    cpu_slots: int
    memory_bytes: int
    labels: dict[str, str]
    spec: JobSpec
    secrets: dict[str, str]
    spec_hash: str
    ord: int


class MemoryArray(msgspec.Struct, kw_only=True):
    """An array. member_ids: the ids of its jobs, in the order of their indices."""

    id: str
    spec: JobSpec
    queue: str
    owner: str = ""
    digest: str
    indices: str
    size: int
    at_once: int | None
    held: str
    created_at: datetime
    member_ids: tuple[str, ...]
    awaited: bool = False
    cancel_reason: str | None = None
    cancel_cause: Cause = Cause.USER_CANCELLED
    cancel_hard: bool = False


class MemorySchedule(msgspec.Struct, kw_only=True):
    """A schedule, its job's secrets, and its runs by their times."""

    record: ScheduleRecord
    secrets: dict[str, str] = {}
    runs: dict[datetime, ScheduleRunRecord] = {}


class MemoryHost(msgspec.Struct, kw_only=True):
    """A host and its heartbeat."""

    id: str
    name: str
    key_hash: bytes | None
    pool: str
    state: HostState
    reason: str
    queues: tuple[str, ...]
    labels: dict[str, str]
    cpu_slots: int
    memory_bytes: int
    gpus: tuple[Gpu, ...]
    address: str
    version: str
    probe: str
    registered_at: datetime
    incarnation: str
    heartbeat_at: datetime
    flagged_dead_at: datetime | None = None
    drain_deadline: datetime | None = None
    drain_cause: Cause = Cause.HOST_DRAINED
    memory_limits: str = ""
    boot_id: str = ""
    faults: tuple[Hindrance, ...] = ()
    caches: tuple[str, ...] = ()
    earlier_incarnations: tuple[str, ...] = ()
    state_at: datetime
    busy_at: datetime | None = None
    ended_key_hash: bytes | None = None

    @property
    def takes_work(self) -> bool:
        """Return whether the host may get new work (ASIDE-1)."""
        return self.state is HostState.ACTIVE and not is_set_aside(self.faults)


class PassedOver(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that the leader's last round passed over, and whether it held room back (TAKE-2)."""

    at: datetime
    holds: bool
    job_ids: frozenset[str]


class MemoryInstance(msgspec.Struct, kw_only=True):
    """The rental of a host's machine."""

    host_id: str
    pool: str
    offer: str
    usd_per_hour: float
    state: InstanceState = InstanceState.INTENDED
    ref: str | None = None
    reason: str = ""
    fault: str = ""
    said: str = ""
    lost: str = ""
    intended_at: datetime
    asked_at: datetime | None = None
    made_at: datetime | None = None
    active_at: datetime | None = None
    end_asked_at: datetime | None = None
    gone_at: datetime | None = None
    seen_at: datetime | None = None
    missing_since: datetime | None = None
    missing_times: int = 0


class MemoryQueue(msgspec.Struct, kw_only=True):
    """A queue."""

    name: str
    settings: dict[str, Value]
    created_at: datetime
    paused_at: datetime | None = None
    paused_reason: str = ""
    hard: bool = False


class MemoryProject(msgspec.Struct, kw_only=True, frozen=True):
    """A project's own settings."""

    name: str
    settings: dict[str, Value]
    created_at: datetime


class MemoryStream(msgspec.Struct, kw_only=True):
    """A log stream, with its chunks and their times by offset. outputs: where outputs of calls
    begin."""

    size: int = 0
    kept: int = 0
    ended: bool = False
    chunks: dict[int, bytes] = {}
    times: dict[int, datetime] = {}
    outputs: list[CallSpan] = []


class MemoryLogRead(msgspec.Struct, kw_only=True):
    """A reader that waits for output from a host."""

    host_id: str
    order: LogReadOrder
    asked_at: datetime
    answer: LogReadAnswer | None = None

    def waits_for(self, host_id: str) -> bool:
        """Return whether this host has to answer the request."""
        return self.answer is None and self.host_id == host_id


class MemoryCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint's row and the name of its blob."""

    record: CheckpointRecord
    blob: str


class MemoryToken(msgspec.Struct, kw_only=True):
    """A token and its hash."""

    record: TokenRecord
    secret_hash: bytes


class MemoryWorkflowRun(msgspec.Struct, kw_only=True):
    """A run, its nodes and the order between them."""

    row: RunRow
    nodes: dict[int, NodeRow]
    specs: Sequence[NodeSpec]
    secrets: dict[int, dict[str, str]]
    parents: Sequence[Sequence[int]]
    children: dict[int, list[int]]
    spec_hash: str
    out_dir: str
    owner: str = ""
    labels: dict[str, str]
    created_at: datetime


StreamKey = tuple[str, int, int, str]


class InMemory:
    """A port of the store, whose rows are in one state."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state


class MemoryState:
    """All rows of the memory store. Nothing here awaits, so every method of the store is one atomic
    step."""

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self.clock = clock or (lambda: datetime.now(UTC))
        created = self.clock()
        self.settings: dict[str, Value] = {}
        self.settings_rev = 1
        self.passed_over = PassedOver(
            at=datetime.min.replace(tzinfo=UTC), holds=True, job_ids=frozenset()
        )
        self.rules = ""
        self.projects: dict[str, MemoryProject] = {}
        self.queues = {
            name: MemoryQueue(name=name, settings=dict(layer), created_at=created)
            for name, layer in BUILTIN_QUEUES.items()
        }
        self.jobs: dict[str, MemoryJob] = {}
        self.keys: dict[tuple[str, str], str] = {}
        self.by_state: dict[JobState, dict[str, None]] = {state: {} for state in UNFINISHED}
        self.tasks: dict[str, dict[int, TaskRow]] = {}
        self.sections: dict[TaskKey, datetime] = {}  # until when each excuses others (EXCUSE-1)
        self.on_host: dict[str, dict[tuple[str, int], None]] = {}
        self.attempts: dict[str, list[AttemptRecord]] = {}
        self.hosts: dict[str, MemoryHost] = {}
        self.host_calls: dict[str, HostCalls] = {}
        self.events: list[EventRecord] = []
        self.pruned_event: str | None = None
        self.streams: dict[StreamKey, MemoryStream] = {}
        self.forensics: dict[tuple[str, int, int, int], Forensics] = {}
        self.tokens: dict[str, MemoryToken] = {}
        self.installation = "0000memory00"
        self.pools: dict[str, PoolRecord] = {}
        self.instances: dict[str, MemoryInstance] = {}
        self.cycles: dict[str, list[CycleSummary]] = {}
        # when, pool, offer, fault, reason
        self.outcomes: list[tuple[datetime, str, str, str, str]] = []
        self.troubles: dict[tuple[str, str], tuple[int, datetime, str]] = {}
        self.checks: dict[tuple[str, str], HostCheckRecord] = {}
        self.telemetry: dict[str, HostTelemetryRecord] = {}
        self.checkpoints: dict[tuple[str, int], list[MemoryCheckpoint]] = {}
        self.tell_drains: DrainListener = drop_drain_news
        self.replacements: list[Seated] = []
        self.log_reads: dict[str, MemoryLogRead] = {}
        self.log_bases: dict[tuple[str, int, int, str], int] = {}
        self.schedules: dict[str, MemorySchedule] = {}
        self.arrays: dict[str, MemoryArray] = {}
        self.edges: dict[tuple[str, str], Wants] = {}  # child, parent
        self._order = 0
        self._event_number = 0
        self._post_number = 0
        self.outbox: dict[int, Post] = {}
        self.set_aside: list[Post] = []
        self.runs: dict[str, MemoryWorkflowRun] = {}
        self.call_sets: dict[int, MemoryCallSet] = {}

    def at(self, now: datetime | None) -> datetime:
        """Return `now`, or the store's clock."""
        return self.clock() if now is None else now

    def next_ord(self) -> int:
        """Return the next place at the back of a queue; its negative is one at the front."""
        self._order += 1
        return self._order

    # ---- transactions

    def load(self, job_ids: Iterable[str], now: datetime) -> Moves:
        """Return copies of the jobs' rows, in id order as the database locks them."""
        ids = sorted({i for i in job_ids if i in self.jobs})
        jobs = [copy.copy(self.jobs[i].row) for i in ids]
        parents = {parent for _, parent in self.edges}
        for job in jobs:
            job.awaited = job.array_id is not None or job.id in parents
        tasks = [copy.copy(task) for i in ids for task in self.tasks.get(i, {}).values()]
        for task in tasks:
            host = self.hosts.get(task.host_id or "")
            task.host_name = None if host is None else host.name
        return Moves(now, jobs, tasks)

    def commit(self, m: Moves) -> None:
        """Write the changed rows back."""
        for job_id in m.cleared:
            for task in self.tasks.pop(job_id, {}).values():
                self.on_host.get(task.host_id or "", {}).pop((job_id, task.rank), None)
        for (job_id, rank), task in m.changed_tasks.items():
            if (job_id, rank) in m.rewritten:
                before = self.tasks[job_id][rank].host_id
                self.on_host.get(before or "", {}).pop((job_id, rank), None)
                self.put_task(task)
            self.tasks[job_id][rank] = task
        self.replacements += m.seated
        for row in m.changed_jobs.values():
            self.put_row(row)
        for (job_id, number), change in m.attempts.items():
            chain = self.attempts[job_id]
            chain[number - 1] = change_attempt(chain[number - 1], change)
        for ended in m.ended_work:
            self.post(ended.run, ended.node, ended.kind, ended.ref, m.now)
        self.log(m.events, m.now)
        if m.drain_news:
            self.tell_drains(m.drain_news)

    def put_row(self, row: JobRow) -> None:
        """Write a job's row and keep the index of states."""
        job = self.jobs[row.id]
        if row.to_place is not None:
            job.ord = -self.next_ord() if row.to_place == "front" else self.next_ord()
            row.to_place = None
        if job.row.state in self.by_state:
            self.by_state[job.row.state].pop(row.id, None)
        if row.state in self.by_state:
            self.by_state[row.state][row.id] = None
        job.row = row

    def put_task(self, task: TaskRow) -> None:
        """Add a task."""
        self.tasks.setdefault(task.job_id, {})[task.rank] = task
        self.on_host.setdefault(task.host_id or "", {})[task.job_id, task.rank] = None

    def post(self, run: str, node: int, kind: str, ref: str, due_at: datetime) -> None:
        """Write a row of the outbox."""
        self._post_number += 1
        n = self._post_number
        self.outbox[n] = Post(n=n, run=run, node=node, kind=kind, ref=ref, due_at=due_at)

    def log(self, events: Iterable[NewEvent], now: datetime) -> None:
        """Append events."""
        for event in events:
            self._event_number += 1
            place = f"{0:012x}-{self._event_number:012x}"
            self.events.append(EventRecord(id=place, at=now, **shared_fields(event, EventRecord)))

    # ---- reading

    def live_tasks(self, host_id: str) -> list[TaskRow]:
        """Return the tasks that hold a lease on a host."""
        found = [self.tasks[job_id][rank] for job_id, rank in self.on_host.get(host_id, {})]
        return sorted((t for t in found if t.state.holds_lease), key=lambda t: (t.job_id, t.rank))

    def task_for(self, key: TaskKey) -> TaskRow | None:
        """Return the task under this key's epoch."""
        task = self.tasks.get(key.job_id, {}).get(key.rank)
        return task if task is not None and task.epoch == key.epoch else None

    def use_of(self, project: str) -> Use:
        """Return what a project's unfinished jobs use."""
        found = [job for job in self._unfinished() if job.row.project == project]
        running = [job for job in found if job.row.state in LIVE_JOB_STATES]
        return Use(
            jobs=len(found),
            gpus=sum(job.gpus * job.row.tasks for job in found),
            running_jobs=len(running),
            running_gpus=sum(job.gpus * job.row.tasks for job in running),
            running_cpu_slots=sum(job.cpu_slots * job.row.tasks for job in running if not job.gpus),
        )

    def _unfinished(self) -> Iterator[MemoryJob]:
        return (self.jobs[job_id] for state in UNFINISHED for job_id in self.by_state[state])

    def job_record(self, job_id: str) -> JobRecord:
        """Return a job's record, with the newest beat while an attempt lives."""
        job = self.jobs[job_id]
        fields = shared_fields(job, JobRecord) | shared_fields(job.row, JobFields)
        beat = (
            last_beat(self.tasks.get(job_id, {}).values())
            if job.row.state in LIVE_JOB_STATES
            else None
        )
        if beat is not None:
            fields.update(step=beat.step, total=beat.total, beat_at=beat.beat_at)
        return JobRecord(**fields)

    def task_record(self, task: TaskRow) -> TaskRecord:
        """Return a task's record."""
        host = self.hosts.get(task.host_id or "")
        fields = shared_fields(task, TaskRecord)
        return TaskRecord(**fields | {"host_name": None if host is None else host.name})

    def host_record(self, host: MemoryHost) -> HostRecord:
        """Return a host's record; busy comes from live leases."""
        live = self.live_tasks(host.id)
        fields = shared_fields(host, HostRecord)
        if not host.incarnation:
            fields["heartbeat_at"] = None  # no agent has called yet
        rented = self.instances.get(host.id)
        if rented is not None:
            fields |= {"offer": rented.offer, "usd_per_hour": rented.usd_per_hour}
            if host.state is HostState.SPAWNING:
                fields["provider_says"] = rented.said
        return HostRecord(
            **fields,
            busy_cpu_slots=sum(t.cpu_slots for t in live),
            busy_memory_bytes=sum(t.memory_bytes for t in live),
            busy_gpus=tuple(sorted(d for t in live for d in t.devices)),
            running=len(live),
        )

    def capacity(self, host: MemoryHost) -> Capacity:
        """Return the free room of a host."""
        live = self.live_tasks(host.id)
        busy = {d for t in live for d in t.devices} | list_held(host.faults)
        return Capacity(
            host_id=host.id,
            name=host.name,
            incarnation=host.incarnation,
            queues=frozenset(host.queues),
            labels=list_able_labels(host.labels, host.faults),
            free_cpu_slots=host.cpu_slots - sum(t.cpu_slots for t in live),
            free_memory_bytes=host.memory_bytes - sum(t.memory_bytes for t in live),
            free_devices=tuple(sorted(g.index for g in host.gpus if g.index not in busy)),
            lacking=list_lacking(host.faults),
            caches=frozenset(host.caches),
        )


def change_attempt(attempt: AttemptRecord, change: AttemptChange) -> AttemptRecord:
    """Return `attempt` with a move's change; None in the change leaves a field as it is."""
    fields = {
        name: value
        for name in change.__struct_fields__
        if name not in ("job_id", "number") and (value := getattr(change, name)) is not None
    }
    return msgspec.structs.replace(attempt, **fields)
