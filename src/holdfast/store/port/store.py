"""What a store does: guarded, transactional steps on the one truth. Both stores pass
`tests/store/conformance.py`.

STORE-1  A state change and its event are one transaction (outbox): whoever reads events never sees
         less than happened.
STORE-2  Every write that speaks for an attempt is guarded by (task, epoch, host incarnation): zero
         rows means stale, and stale changes nothing (FENCE-1).
STORE-3  An epoch grows with every admission and every completed drain, and is never given twice.
STORE-4  Readers of events never miss one: an event is shown only when no older transaction can
         still commit.
STORE-5  `now` is injectable everywhere; None means the store's own clock. It is never a client's or
         an agent's clock.

Unavailable (holdfast.errors) is raised when the store cannot be reached or a transaction's fate is
unknown; every method may be called again after it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.causes import Cause
from holdfast.core.endings.drain import Completion
from holdfast.core.endings.replace import Replacement
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement, RunningTask, Size
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    HostRecord,
    JobRecord,
    LogChunk,
    LogStreamRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
    TokenRecord,
)
from holdfast.core.settings.resolve import Value
from holdfast.moves.values import (
    AdmissionSnapshot,
    DrainSnapshot,
    DueMember,
    Gauges,
    HostSync,
    HostSynced,
    JobFilter,
    LiveTask,
    LogAppend,
    NewJob,
    PreemptRow,
    Released,
    Reserved,
    SettingsLayers,
    Submitted,
    TaskBeat,
    TaskOffer,
    TellDrains,
)
from holdfast.store.port.checkpoints import CheckpointStore
from holdfast.store.port.reads import BatchReads
from holdfast.store.port.webhooks import WebhookStore
from holdfast.wire.agent import Forensics, HostFacts

__all__ = [
    "AdmissionSnapshot",
    "TaskBeat",
    "DrainSnapshot",
    "Gauges",
    "HostSync",
    "HostSynced",
    "JobFilter",
    "LiveTask",
    "LogAppend",
    "NewJob",
    "PreemptRow",
    "Released",
    "SettingsLayers",
    "Store",
    "Submitted",
    "TaskOffer",
]


class Store(WebhookStore, CheckpointStore, BatchReads, Protocol):
    """The one truth."""

    # ---- life
    async def open(self) -> None:
        """Connect. Raises Unavailable. Does not migrate (`store.postgres.connection.migrate` does,
        under an advisory lock)."""

    async def close(self) -> None: ...

    async def ping(self) -> None:
        """Raise Unavailable unless a trivial read works within a second."""

    async def now(self) -> datetime: ...

    # ---- leadership and hints
    async def try_lead(self) -> bool:
        """Take or confirm leadership (a session's advisory lock on a connection of its own). False:
        another leads, or it was lost."""

    async def stop_leading(self) -> None: ...

    def hint(self, topic: str) -> None:
        """Tell every replica, soon and at most once per 20 ms per topic, that `topic` may have
        work.

        Topics: "admit", "drain", "due", "events", "logs", "host:<id>". A hint may be lost; polling
        is the contract.
        """

    def hints(self) -> AsyncIterator[str]:
        """Yield hints from every replica, this one included, for ever."""

    # ---- settings, queues
    async def read_settings(self) -> SettingsLayers:
        """Every layer, from one revision or newer."""

    async def write_cluster_settings(
        self,
        changes: Mapping[str, Value],
        unset: Sequence[str] = (),
        *,
        now: datetime | None = None,
    ) -> int: ...

    async def write_rules(self, text: str, *, now: datetime | None = None) -> int:
        """Replace the operators' rules (checked by the caller) and return the new revision. Event
        settings.changed."""

    # ---- projects
    async def list_projects(self) -> list[ProjectRecord]:
        """Projects with settings of their own and those that unfinished jobs name, by name."""

    async def get_project(self, name: str) -> ProjectRecord:
        """A project nobody has named yet is an empty one."""

    async def put_project(
        self,
        name: str,
        changes: Mapping[str, Value],
        unset: Sequence[str] = (),
        *,
        now: datetime | None = None,
    ) -> ProjectRecord:
        """Create or change a project (checked settings). Raises the revision. Event
        project.changed."""

    async def delete_project(self, name: str, *, now: datetime | None = None) -> None:
        """Forget a project's settings. Raises NotFound where it has none, Conflict while unfinished
        jobs are in it."""

    async def list_queues(self) -> list[QueueRecord]: ...

    async def get_queue(self, name: str) -> QueueRecord:
        """Raises NotFound."""

    async def put_queue(
        self,
        name: str,
        changes: Mapping[str, Value],
        unset: Sequence[str] = (),
        *,
        now: datetime | None = None,
    ) -> QueueRecord:
        """Create or change a queue (checked settings)."""

    async def delete_queue(self, name: str, *, now: datetime | None = None) -> None:
        """Raises Conflict while unfinished jobs are in it."""

    async def pause_queue(
        self, name: str, reason: str, *, hard: bool, now: datetime | None = None
    ) -> list[str]:
        """No new starts from the queue; `hard` also drains what runs (cause preempted, operator
        stop). Returns the jobs it made drain."""

    async def resume_queue(self, name: str, *, now: datetime | None = None) -> None: ...

    # ---- jobs
    async def submit_jobs(
        self, jobs: Sequence[NewJob], *, now: datetime | None = None
    ) -> list[Submitted]:
        """Write jobs and their events, all or none. A start time in the future makes a job
        `waiting`.

        QUOTA-1: a hard quota counts all unfinished jobs, is checked under the project's lock, and
        refuses the whole call. A job that alone is over its project's GPU quota is refused by a
        soft one too: it could never start.

        Raises:
            Conflict: an idempotency key names a job whose spec differs (code
            "idempotency_mismatch").
            QuotaExceeded: the project's quota forbids it.
        """

    async def get_job(self, job_id: str) -> JobRecord:
        """Raises NotFound."""

    async def list_jobs(self, filter: JobFilter) -> list[JobRecord]: ...

    async def count_jobs(self) -> dict[tuple[str, str], int]:
        """(queue, state) → count, unfinished states exactly; used by `queues` and metrics."""

    async def count_waiting(self) -> dict[tuple[str, str], int]:
        """(project, wait_cause) → count of waiting jobs; used by `retries` and metrics."""

    async def list_tasks(self, job_id: str) -> list[TaskRecord]: ...

    async def list_attempts(self, job_id: str) -> list[AttemptRecord]:
        """Oldest first, the running one included. Raises NotFound for an unknown job."""

    async def cancel_job(
        self, job_id: str, reason: str, *, hard: bool = False, now: datetime | None = None
    ) -> JobRecord:
        """waiting/queued → cancelled; a reservation never offered → cancelled; else a drain (cause
        user_cancelled) begins or is turned into a cancel. A job that has ended is returned as it
        is. Raises NotFound."""

    async def revive_job(
        self,
        job_id: str,
        reason: str,
        *,
        counted: bool = False,
        from_scratch: bool = False,
        now: datetime | None = None,
    ) -> JobRecord:
        """failed/cancelled → queued, for a person's `retry`: with all budgets fresh, or, `counted`,
        as one more retry of those it has. from_scratch: its checkpoints are forgotten with it; else
        the newest is handed on. A job that is parked goes on likewise; one that backs off does so
        at once, with its budgets as they are. Raises Conflict from any other state."""

    async def drain_job(
        self,
        job_id: str,
        cause: Cause,
        reason: str,
        *,
        hard: bool = False,
        epoch: int | None = None,
        now: datetime | None = None,
    ) -> bool:
        """Start a drain of a reserved or running job, where `epoch` is given only of that attempt.
        True when this call started it (one drain per epoch)."""

    async def release_due(
        self, retry_limit: int | None = None, *, now: datetime | None = None
    ) -> Released:
        """waiting jobs whose time has come → queued, in batches; of retries at most `retry_limit`.

        RETRY-6: the kill switch (`retries_enabled` of the cluster, its environment and the job's
        project; any that is off) is read in the transaction that dispatches. A due retry under it
        becomes `retries_held` (event job.retry_held, once); one no longer under it backs off again
        until its `retry_at`. Each dispatch leaves its audit: event job.retry_dispatched with
        retry_count, cause, due_at and waited_seconds.
        """

    # ---- admission
    async def read_admission(
        self, limit: int, *, now: datetime | None = None
    ) -> AdmissionSnapshot: ...

    async def read_running(self, *, now: datetime | None = None) -> list[RunningTask]:
        """Every task that holds room. `ends_in_seconds` is left to the caller, who knows the
        settings."""

    async def list_reserved(
        self, ids: Sequence[str] | None = None, *, now: datetime | None = None
    ) -> list[Reserved]:
        """Jobs that are reserved and do not run yet: all, or those of `ids`."""

    async def reserve(
        self,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        *,
        now: datetime | None = None,
    ) -> list[str]:
        """Apply placements whose job is still queued under its epoch, its queue not paused and
        hosts active under the same incarnation. `ttls`: job id → lease TTL in seconds. Writes
        tasks, the attempt row, the new epoch and the event. Returns the ids applied."""

    async def expire_reservations(
        self, reservation_seconds: float, *, now: datetime | None = None
    ) -> list[str]:
        """Reservations never offered to their host within `reservation_seconds` → queued (attempt
        ended, outcome expired; no charge; the attempt number is not reused). Where some ranks were
        offered and others not, a drain begins (cause start_timeout). Those offered to all are left
        to their leases. Returns job ids."""

    # ---- members of supervised jobs
    async def list_members(self, limit: int) -> list[DueMember]:
        """Members about which something is to be decided: those that fell, and replacements that
        have not started yet."""

    async def replace_members(
        self, plans: Sequence[tuple[TaskKey, Replacement]], *, now: datetime | None = None
    ) -> list[TaskKey]:
        """Carry out what was decided of fallen members, in their order and all at once: each is
        `blocked` until it has another host (event task.replaced) or, parked, for a person
        (task.parked), its charge and a barred host on record; or, where it does not go on, the
        drain of its job begins with it as the trigger. Returns those it was carried out for: not
        where the job drains, or somebody else has decided."""

    async def unpark_members(
        self, job_id: str, reason: str, *, now: datetime | None = None
    ) -> JobRecord:
        """A person's `retry` of a job that goes on: its parked members are placed again (event
        task.released). Raises Conflict where it has none, NotFound where there is no such job."""

    async def stop_member(
        self, key: TaskKey, cause: Cause, reason: str, *, now: datetime | None = None
    ) -> bool:
        """Stop one live member while the others run on. False where it is none, or is being stopped
        already."""

    async def seat_members(
        self,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        *,
        now: datetime | None = None,
    ) -> list[str]:
        """Apply the placements of blocked members under the guards of `reserve`: each job's get a
        new epoch of their own (MEMBER-1), and their start barrier is open. Event task.reserved for
        each. Returns the ids of jobs."""

    async def release_members(
        self, reservation_seconds: float, *, now: datetime | None = None
    ) -> list[str]:
        """Places of replacements never offered to their host within `reservation_seconds` are taken
        back. Returns the ids of jobs."""

    # ---- hosts
    async def register_host(
        self,
        host_id: str,
        key_hash: bytes | None,
        incarnation: str,
        facts: HostFacts,
        *,
        now: datetime | None = None,
    ) -> HostRecord:
        """Create (key_hash given) or re-register. A new incarnation frees the old one's tasks at
        once, lost="new_incarnation" (LEASE-3).

        Raises:
            Stale: an earlier incarnation of this host speaks late (code "stale_incarnation");
            nothing was changed.
        """

    async def find_host_by_key(self, key_hash: bytes) -> HostRecord | None: ...

    async def get_host(self, host: str) -> HostRecord:
        """By id or name. Raises NotFound."""

    async def list_hosts(
        self, *, include_terminated: bool = False, dead: bool = False
    ) -> list[HostRecord]: ...

    async def host_sizes(self) -> list[Size]:
        """Whole sizes of hosts that are not terminated."""

    async def move_host(
        self,
        host_id: str,
        event: str,
        reason: str,
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
        now: datetime | None = None,
    ) -> HostRecord:
        """Apply a HostEvent (drain, undrain, quarantine, release, terminate). With drain,
        `deadline_seconds` says how long running work may go on. `hard` drains what runs there now
        (cause host_drained, operator stop). scale_down, with drain: the host is not needed any
        more; what runs there drains with cause scaled_down, each task with its grace, now or when
        the deadline comes. Raises Conflict naming what the state accepts. terminate loses its tasks
        at once (host_gone)."""

    async def drain_due_hosts(self, *, now: datetime | None = None) -> dict[str, list[str]]:
        """Hosts being drained whose deadline has come: what still runs there drains (host_drained
        or scaled_down, at no charge), once. Returns host id → jobs."""

    async def sync_hosts(
        self,
        syncs: Sequence[HostSync],
        *,
        rules: Sequence[OperatorRule] = (),
        now: datetime | None = None,
    ) -> list[HostSynced]:
        """Take many hosts' syncs in one transaction; answers in the same order. rules: the
        operators' own, by which a drain that begins here says its cause (CLASSIFY-4).

        Per host: heartbeat (clears `flagged_dead_at` with a host.recovered event), beats, renewals,
        starts (task → running; when
        all run: attempt and job → running, event job.started), ends. An end: exit 0 by itself →
        done; otherwise failed, or preempted when the task was preempting and `facts.stopped`. A job
        whose tasks are all done succeeds here (attempt ended, task rows deleted, events job.started
        if it was missed, and job.succeeded). A failed task makes its job drain: trigger on record,
        siblings preempting, event job.draining. `leaving` → host terminated after its ends are
        taken.
        A key that matches no live task of this host and incarnation: `lost` if reported live,
        `refused` if reported ended (STORE-2). An end whose task has already ended under the same
        key is acked again, not refused.
        """

    async def lapse_leases(
        self, leading_since: datetime, *, now: datetime | None = None
    ) -> list[str]:
        """Tasks whose lease ended more than its margin ago, and for which leading_since + TTL has
        passed (LEASE-4): running/reserved → failed with lost="lease_lapsed"; preempting →
        preempted. Their jobs drain. Returns job ids."""

    async def settle_clock(self, *, now: datetime | None = None) -> None:
        """LEASE-5: what the clock put into the future before it was set back is of now: heartbeats,
        and when reservations and drains began. No lease ends later than its TTL from now."""

    async def sweep_dead_hosts(
        self, dead_seconds: float, leading_since: datetime, *, now: datetime | None = None
    ) -> list[HostRecord]:
        """Flag, once, hosts with live tasks whose heartbeat is older than `dead_seconds` (and for
        which leading_since + dead_seconds has passed). Event host.dead. Returns those flagged by
        this call."""

    # ---- drains
    def watch_drains(self, tell: TellDrains) -> None:
        """From now on `tell` is called, after each commit of this store's that began drains or in
        which tasks that had to stop have gone, with what happened. It must not raise, and is not
        called where the fate of a commit is unknown."""

    async def list_drains(self, limit: int) -> list[DrainSnapshot]:
        """Draining jobs none of whose tasks holds a lease: ready to be completed."""

    async def complete_drain(
        self, job_id: str, epoch: int, completion: Completion, *, now: datetime | None = None
    ) -> bool:
        """Write a completion where the job still drains under `epoch`: attempt ended, task rows
        deleted, job moved, charges, avoid-list and quarantine applied, epoch + 1, events. One
        transaction; False when someone else did it."""

    async def list_slow_drains(self, before: datetime) -> list[JobRecord]:
        """Draining jobs, not forced yet, with tasks that were told to stop before a time and have
        not confirmed it."""

    async def force_drain(self, job_id: str, epoch: int, *, now: datetime | None = None) -> int:
        """Tell what is left of a drain to end without grace, once. Event task.force_drained for
        each task. Returns how many."""

    # ---- live watch settings
    async def list_live_tasks(self, host_id: str) -> list[LiveTask]: ...

    # ---- events
    async def read_events(
        self,
        after: str | None,
        *,
        limit: int = 500,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int = 0,
    ) -> list[EventRecord]:
        """Events after the id `after` (None: from the start; with `tail` n: the last n), in an
        order that never changes (STORE-4)."""

    # ---- logs and forensics
    async def append_logs(self, host_id: str, appends: Sequence[LogAppend]) -> list[int | None]:
        """Store bytes of streams of tasks this host ran, in their order and in one transaction; of
        each stream the head (1/8) and the tail of `keep_bytes` are kept. Idempotent by offset.
        Returns each stream's size after it, None where no attempt of that job and epoch ran on this
        host."""

    async def list_log_streams(
        self, job_id: str, attempt: int | None = None
    ) -> list[LogStreamRecord]: ...

    async def read_log(
        self,
        job_id: str,
        attempt: int,
        rank: int,
        stream: str,
        offset: int,
        *,
        limit_bytes: int = 1 << 20,
    ) -> list[LogChunk]:
        """Bytes from `offset` on, trimmed to start there; a jump in offsets is a gap."""

    async def put_forensics(
        self, host_id: str, forensics: Forensics, *, now: datetime | None = None
    ) -> None:
        """Raises Stale when no attempt of that job and epoch ran on this host."""

    async def get_forensics(
        self, job_id: str, attempt: int | None = None
    ) -> list[tuple[int, Forensics]]:
        """(attempt number, forensics), oldest first."""

    # ---- tokens
    async def create_token(
        self,
        token_id: str,
        role: str,
        name: str,
        secret_hash: bytes,
        expires_at: datetime | None,
        *,
        now: datetime | None = None,
    ) -> TokenRecord: ...

    async def find_token(
        self, secret_hash: bytes, *, now: datetime | None = None
    ) -> TokenRecord | None:
        """None for unknown, expired or revoked ones."""

    async def use_join_token(
        self, secret_hash: bytes, *, now: datetime | None = None
    ) -> TokenRecord | None:
        """Spend a one-time join token; None when it is unknown, expired, revoked or spent."""

    async def list_tokens(self) -> list[TokenRecord]: ...

    async def revoke_token(self, token_id: str, *, now: datetime | None = None) -> None: ...

    # ---- housekeeping
    async def read_gauges(self, *, now: datetime | None = None) -> Gauges: ...

    async def prune(
        self, history_days: float, *, limit: int = 1000, now: datetime | None = None
    ) -> int:
        """Delete ended jobs older than that with everything of theirs, in small batches. Returns
        how many jobs."""
