"""The rows of the model, and its transaction: load copies, apply moves, write them back at once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import msgspec

from holdfast.core.causes import Cause
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
    EventRecord,
    HostRecord,
    JobFields,
    JobRecord,
    TaskRecord,
    shared_fields,
)
from holdfast.core.settings.resolve import BUILTIN_QUEUES, Value
from holdfast.core.spec import JobSpec
from holdfast.core.states import HostState, JobState
from holdfast.moves.jobs.moves import LIVE_JOB_STATES, Moves, last_beat
from holdfast.moves.jobs.quotas import Use
from holdfast.moves.rows import AttemptChange, JobRow, NewEvent, TaskRow
from holdfast.moves.values import Seated

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
    ord: int


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

    @property
    def takes_work(self) -> bool:
        """Return whether the host may get new work (ASIDE-1)."""
        return self.state is HostState.ACTIVE and not is_set_aside(self.faults)


class PassedOver(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs that the leader's last round passed over, and whether it held room back (TAKE-2)."""

    at: datetime
    holds: bool
    job_ids: frozenset[str]


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


class InMemory:
    """A part of the model, whose rows are in one state."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state


class MemoryState:
    """All rows of the model. Nothing here awaits, so every method of the store is one atomic step."""

    def __init__(self, clock: Callable[[], datetime] | None = None) -> None:
        self.clock = clock or (lambda: datetime.now(UTC))
        created = self.clock()
        self.settings: dict[str, Value] = {}
        self.settings_rev = 1
        self.passed_over = PassedOver(
            at=datetime.min.replace(tzinfo=UTC), holds=True, job_ids=frozenset()
        )
        self.projects: dict[str, MemoryProject] = {}
        self.queues = {
            name: MemoryQueue(name=name, settings=dict(layer), created_at=created)
            for name, layer in BUILTIN_QUEUES.items()
        }
        self.jobs: dict[str, MemoryJob] = {}
        self.by_state: dict[JobState, dict[str, None]] = {state: {} for state in UNFINISHED}
        self.tasks: dict[str, dict[int, TaskRow]] = {}
        self.on_host: dict[str, dict[tuple[str, int], None]] = {}
        self.attempts: dict[str, list[AttemptRecord]] = {}
        self.hosts: dict[str, MemoryHost] = {}
        self.events: list[EventRecord] = []
        self.replacements: list[Seated] = []
        self._order = 0
        self._event_number = 0

    def at(self, now: datetime | None) -> datetime:
        """Return `now`, or the store's clock."""
        return self.clock() if now is None else now

    def next_ord(self) -> int:
        """Return the next place at the back of a queue; the negative of that number is a place at
        the front."""
        self._order += 1
        return self._order

    # ---- transactions

    def load(self, job_ids: Iterable[str], now: datetime) -> Moves:
        """Return copies of the jobs' rows, in id order as the database locks them."""
        ids = sorted({i for i in job_ids if i in self.jobs})
        jobs = [copy.copy(self.jobs[i].row) for i in ids]
        tasks = [copy.copy(task) for i in ids for task in self.tasks.get(i, {}).values()]
        for task in tasks:
            host = self.hosts.get(task.host_id or "")
            task.host_name = None if host is None else host.name
        return Moves(now, jobs, tasks)

    def commit(self, m: Moves) -> None:
        """Write back the rows that the moves have changed."""
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
        self.log(m.events, m.now)

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
        """Add a task to the rows."""
        self.tasks.setdefault(task.job_id, {})[task.rank] = task
        self.on_host.setdefault(task.host_id or "", {})[task.job_id, task.rank] = None

    def log(self, events: Iterable[NewEvent], now: datetime) -> None:
        """Append events to the record of events."""
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
        """Return the resources that a project's unfinished jobs use."""
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
            fields.update(
                step=beat.step,
                total=beat.total,
                beat_at=beat.beat_at,
                rate=beat.rate,
                moved_at=beat.moved_at,
            )
        return JobRecord(**fields)

    def task_record(self, task: TaskRow) -> TaskRecord:
        """Return a task's record."""
        host = self.hosts.get(task.host_id or "")
        fields = shared_fields(task, TaskRecord)
        return TaskRecord(**fields | {"host_name": None if host is None else host.name})

    def host_record(self, host: MemoryHost) -> HostRecord:
        """Return a host's record. Its busy resources are counted from live leases."""
        live = self.live_tasks(host.id)
        fields = shared_fields(host, HostRecord)
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
    """Return `attempt` with the change that a move asks for. A field that is None in the change
    keeps its value."""
    fields = {
        name: value
        for name in change.__struct_fields__
        if name not in ("job_id", "number") and (value := getattr(change, name)) is not None
    }
    return msgspec.structs.replace(attempt, **fields)
