"""The port: what the store on PostgreSQL and its model in memory both do, each method once.

The port is what a simulator of scheduling and the protocol's chaos need, and it grows only with
them. All else stands in `store.postgres` alone, where each class is its own contract.

STORE-1  A state change and its event are one transaction (outbox): a reader of events never sees
         less than happened.
STORE-2  Every write on behalf of an attempt is guarded by (task, epoch, host incarnation): a write
         that matches no row is stale, and changes nothing (FENCE-1).
STORE-3  An epoch grows with every admission and every completed drain, and is never given twice.
STORE-4  Readers of events never miss one: an event is shown only when no older transaction can
         still commit.
STORE-5  `now` is injectable everywhere; None means the store's own clock. It is never a client's or
         an agent's clock.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.causes import Cause
from holdfast.core.endings.drain import Completion
from holdfast.core.endings.replace import Replacement
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement, RunningTask
from holdfast.core.placement.takes import TakeTerms
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    HostRecord,
    JobRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
)
from holdfast.core.settings.resolve import Value
from holdfast.moves.values import (
    AdmissionSnapshot,
    DrainSnapshot,
    DueMember,
    HostSync,
    HostSynced,
    NewJob,
    Released,
    Reserved,
    SettingsLayers,
    Submitted,
)
from holdfast.store.port.clock import Now
from holdfast.wire.agent import HostFacts


class JobStore(Protocol):
    """Jobs, their tasks and their attempts.

    The model takes each submission as new: it knows no idempotency keys, parents or hard quotas.
    """

    async def submit_jobs(self, jobs: Sequence[NewJob], *, now: Now = None) -> list[Submitted]:
        """Write jobs and their events, all or none. A job with a start time in the future becomes
        `waiting`.

        QUOTA-1: a hard quota counts all unfinished jobs, is checked under the project's lock, and
        refuses the whole call. A soft quota, too, refuses a job that alone needs more GPUs than the
        quota, because such a job could never start.

        Raises:
            Conflict: an idempotency key names a job whose spec differs (code
            "idempotency_mismatch").
            QuotaExceeded: the project's quota forbids it.
        """

    async def get_job(self, job_id: str) -> JobRecord:
        """Return a job. Raises NotFound."""

    async def list_tasks(self, job_id: str) -> list[TaskRecord]:
        """Return the tasks of a job's present attempt, by rank."""

    async def list_attempts(self, job_id: str) -> list[AttemptRecord]:
        """Return a job's attempts, oldest first, the running one included. Raises NotFound."""

    async def cancel_job(
        self, job_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> JobRecord:
        """Cancel a job. A job that waits, is queued, or has a reservation never offered to a host
        is cancelled at once; for any other a drain begins (cause user_cancelled), or the present
        drain becomes a cancel. A job that has ended is returned as it is. Raises NotFound."""

    async def revive_job(
        self,
        job_id: str,
        reason: str,
        *,
        counted: bool = False,
        from_scratch: bool = False,
        now: Now = None,
    ) -> JobRecord:
        """Queue a failed, cancelled or parked job again, for a person's `retry`. A job that backs
        off is queued at once, with its budgets as they are.

        counted: use one more retry of the present budgets, instead of starting with fresh ones.
        from_scratch: forget its checkpoints; otherwise it starts from the newest.

        Raises:
            NotFound: no such job. Conflict: from any other state.
        """

    async def drain_job(
        self,
        job_id: str,
        cause: Cause,
        reason: str,
        *,
        hard: bool = False,
        epoch: int | None = None,
        notice_seconds: float | None = None,
        now: Now = None,
    ) -> bool:
        """Begin a drain of a reserved or running job; with `epoch`, only of the attempt under that
        epoch. notice_seconds: the time that its tasks have to save; None: their grace. Return
        whether this call began the drain: an epoch has one drain at most. Raises NotFound."""


class AdmissionStore(Protocol):
    """The jobs that could start, and the writes that start them."""

    async def release_due(self, retry_limit: int | None = None, *, now: Now = None) -> Released:
        """Queue waiting jobs whose time has come, in batches; of retries at most `retry_limit`.

        RETRY-6: the kill switch (`retries_enabled` of the cluster, its environment and the job's
        project; any that is off) is read in the transaction that dispatches. A due retry under it
        becomes `retries_held` (event job.retry_held, once); one no longer under it backs off again
        until its `retry_at`. Each dispatch leaves its audit: event job.retry_dispatched with
        retry_count, cause, due_at and waited_seconds.
        """

    async def read_admission(
        self, limit: int, *, but: Sequence[str] = (), now: Now = None
    ) -> AdmissionSnapshot:
        """Return the queued jobs that may be started next, at most `limit` of each queue, and the
        free room of the hosts.

        but: ids of jobs to leave out.
        """

    async def note_passed(self, job_ids: Sequence[str], *, holds: bool, now: Now = None) -> None:
        """Write which jobs the leader's round passed over, and whether the round held room back for
        any of them. Hosts that take jobs read this (TAKE-2). A crash of the server may lose it."""

    async def read_running(self, *, now: Now = None) -> list[RunningTask]:
        """Return every task that holds room. The caller, which knows the settings, fills in
        `ends_in_seconds`."""

    async def list_reserved(
        self, ids: Sequence[str] | None = None, *, now: Now = None
    ) -> list[Reserved]:
        """Return the jobs that are reserved and do not run yet: all of them, or those of `ids`."""

    async def expire_reservations(
        self, reservation_seconds: float, *, now: Now = None
    ) -> list[str]:
        """Queue jobs again whose reservation was never offered to its host within
        `reservation_seconds` (attempt ended, outcome expired; no charge; the attempt number is not
        reused). Where some ranks were offered and others not, a drain begins (cause start_timeout).
        Reservations offered to all are left to their leases. Returns job ids."""


class LeaseStore(Protocol):
    """The reports of agents, and the consequences of their silence."""

    async def sync_hosts(
        self,
        syncs: Sequence[HostSync],
        *,
        rules: Sequence[OperatorRule] = (),
        terms: TakeTerms | None = None,
        now: Now = None,
    ) -> list[HostSynced]:
        """Apply many hosts' syncs in one transaction; answers come in the same order.

        rules: the operators' rules, for the cause of a drain that begins here (CLASSIFY-4).

        terms: the queues in which hosts whose syncs set `takes` fill their free room at once, by
        `core.placement.takes`: each job taken is reserved and offered like any other, with
        AttemptRecord.road `host`. None: in no queue.

        Per host: its heartbeat (clears `flagged_dead_at` with a host.recovered event), beats,
        renewals, starts and ends. A start makes its task running; when all tasks run, attempt and
        job do too (event job.started).
        An end with exit 0 by itself → done; otherwise failed, or preempted when the task was
        preempting and `facts.stopped`. A job whose tasks are all done succeeds here (attempt ended,
        task rows deleted, events job.started if it was missed, and job.succeeded). A failed task
        makes its job drain: trigger on record, siblings preempting, event job.draining.
        `leaving` → the host is terminated after its ends are recorded; a host that leaves out ends
        of tasks that have begun, or that it lists as live, keeps its state and gets no orders.
        A key that matches no live task of this host and incarnation is `lost` if reported live,
        `refused` if reported ended (STORE-2). An end whose task has already ended under the same
        key is acknowledged again, not refused.
        """

    async def reserve_and_offer(
        self,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> tuple[list[str], list[HostSynced]]:
        """Apply placements whose job is still queued under its epoch, its queue not paused and its
        hosts active under the same incarnation. Write tasks, the attempt's row, the new epoch and
        the event, and in the same transaction answer the waiting syncs of hosts with their new
        offers and claims.

        ttls: job id → lease TTL in seconds. polls: the waiting syncs. Return the ids applied, and
        an answer for each host that has one. The next sync repeats an answer that never arrived,
        like any offer.
        """

    async def lapse_leases(self, leading_since: datetime, *, now: Now = None) -> list[str]:
        """End tasks whose lease ended more than its margin ago, and for which leading_since + TTL
        has passed (LEASE-4): running or reserved → failed with lost="lease_lapsed"; preempting →
        preempted. Their jobs drain. Returns job ids."""


class DrainStore(Protocol):
    """Draining jobs and their completion."""

    async def list_drains(
        self, limit: int, *, late_seconds: float = 0.0, now: Now = None
    ) -> list[DrainSnapshot]:
        """Return draining jobs that are ready to be completed, because none of their tasks holds a
        lease. late_seconds: for how long a task whose lease lapsed holds its job up, unless its
        host is flagged dead, because the host may be heard again with a good end (LATE-1)."""

    async def complete_drain(
        self,
        job_id: str,
        epoch: int,
        completion: Completion,
        *,
        at_once: bool = False,
        now: Now = None,
    ) -> bool:
        """Write a completion where the job still drains under `epoch`, in one transaction: attempt
        ended, task rows deleted, job moved, charges, avoid-list and quarantine applied, epoch + 1,
        events. at_once: a retry that is due already is dispatched as well, unless a kill switch
        holds it (RETRY-6). False when another call did it."""

    async def list_slow_drains(self, before: datetime) -> list[JobRecord]:
        """Return draining jobs, not forced yet, with tasks that were ordered to stop before the
        instant `before` and whose ends are not confirmed."""

    async def force_drain(self, job_id: str, epoch: int, *, now: Now = None) -> int:
        """Order the remaining tasks of a drain to end without grace, once. Each task gets an event
        task.force_drained. Return the number of tasks."""


class MemberStore(Protocol):
    """Members of supervised jobs, which fall and are replaced while the others run on."""

    async def list_members(self, limit: int, *, now: Now = None) -> list[DueMember]:
        """Return the members of supervised jobs that need a decision: members that fell, and
        replacements that have not started yet."""

    async def replace_members(
        self, plans: Sequence[tuple[TaskKey, Replacement]], *, now: Now = None
    ) -> list[TaskKey]:
        """Carry out the decisions on fallen members, in their order and in one transaction. Each
        member is `blocked` until it has another host (event task.replaced) or, if parked, until a
        person releases it (event task.parked); its charge and a barred host are written too. The
        fall of a member that is not to be replaced begins the drain of its job, as the drain's
        trigger.

        Return the keys whose decisions were carried out. Keys of jobs that drain, or that another
        call has decided on, are missing.
        """

    async def stop_member(
        self, key: TaskKey, cause: Cause, reason: str, *, now: Now = None
    ) -> bool:
        """Stop one live member while the other members run on. Return False where the key names no
        live member, or a member that is being stopped already."""

    async def seat_members(
        self, placements: Sequence[JobPlacement], ttls: Mapping[str, float], *, now: Now = None
    ) -> list[str]:
        """Apply the placements of members that wait for a host, under the guards of `reserve`. The
        members of each job get a new epoch of their own (MEMBER-1), and their start barrier is
        open. Each member gets an event task.reserved. Returns job ids."""

    async def release_members(self, reservation_seconds: float, *, now: Now = None) -> list[str]:
        """Release reservations of replacements that were never offered to their host within
        `reservation_seconds`. Return the ids of their jobs."""


class HostStore(Protocol):
    """Hosts and their states."""

    async def register_host(
        self,
        host_id: str,
        key_hash: bytes | None,
        incarnation: str,
        facts: HostFacts,
        *,
        faults: Sequence[Hindrance] = (),
        held: Collection[TaskKey] = (),
        announced: Sequence[str] = (),
        now: Now = None,
    ) -> HostRecord:
        """Create a host (key_hash given) or register it again; there is no preflight, so it is
        active at once. A new incarnation frees the old one's tasks at once, lost="new_incarnation"
        (LEASE-3), except those in `held`, whose containers may still run: they keep their leases
        until those lapse, or until the host registers again without them. faults: as in `HostSync`.
        announced: earlier incarnations of the host, as it says, newest first.

        Raises:
            NotFound: no key_hash, and no such host.
            Stale: the request of an earlier incarnation came late (code "stale_incarnation");
            nothing was changed.
        """

    async def get_host(self, host: str) -> HostRecord:
        """Return a host by id or name. Raises NotFound."""

    async def list_hosts(
        self,
        *,
        include_terminated: bool = False,
        dead: bool = False,
        trouble: bool = False,
        gpus: bool = False,
        part: str | None = None,
        limit: int | None = None,
    ) -> list[HostRecord]:
        """Return hosts by name. dead: only the hosts that are flagged dead. trouble: only the hosts that
        are flagged dead, not active, or have a fault. gpus: only the hosts that have some. part: a part
        of the name in any case, or the beginning of the id. limit: the most hosts to return."""

    async def move_host(
        self,
        host_id: str,
        event: str,
        reason: str,
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
        now: Now = None,
    ) -> HostRecord:
        """Apply a HostEvent (drain, undrain, quarantine, release, terminate). terminate ends the
        host's tasks as lost at once (host_gone).

        hard: drain its running jobs now (cause host_drained, operator stop).
        deadline_seconds: with drain, how long running work may go on.
        scale_down: with drain, the host is no longer needed; its jobs drain with cause scaled_down,
        each task with its grace, now or at the deadline.

        Raises:
            NotFound: no such host. Conflict: names the events that the state accepts.
        """

    async def drain_due_hosts(self, *, now: Now = None) -> dict[str, list[str]]:
        """Drain, once and at no charge, the jobs that still run on draining hosts whose deadline
        has come (cause host_drained or scaled_down). Return host id → ids of the drained jobs."""

    async def sweep_dead_hosts(
        self, dead_seconds: float, leading_since: datetime, *, now: Now = None
    ) -> list[HostRecord]:
        """Flag, once, hosts with live tasks whose heartbeat is older than `dead_seconds` (and for
        which leading_since + dead_seconds has passed). Each gets an event host.dead. Returns the
        hosts that this call flagged."""


class EventStore(Protocol):
    """Events in an order that never changes (STORE-4)."""

    async def read_events(
        self,
        after: str | None,
        *,
        limit: int = 500,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int = 0,
    ) -> list[EventRecord]:
        """Return events after the id `after` (None: from the start; with `tail` n: the last n)."""


class SettingsStore(Protocol):
    """The layers of settings that decide which jobs start: of the cluster, its projects and its queues.

    A write merges `changes` into the layer and drops the names in `unset`. Where that changed
    anything, it increments the revision and writes an event. A bad value raises ValidationError.
    """

    async def read_settings(self) -> SettingsLayers:
        """Return every layer, from one revision or newer."""

    async def write_cluster_settings(
        self, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> int:
        """Change the cluster's settings and return the revision. Event settings.changed."""

    async def put_project(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> ProjectRecord:
        """Create or change a project. Event project.changed."""

    async def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> QueueRecord:
        """Create or change a queue."""

    async def pause_queue(
        self, name: str, reason: str, *, hard: bool, now: Now = None
    ) -> list[str]:
        """Stop new starts from the queue; `hard` also drains its running jobs (cause preempted,
        operator stop). Returns the jobs that began to drain. Raises NotFound."""

    async def resume_queue(self, name: str, *, now: Now = None) -> None:
        """Allow new starts again. Raises NotFound."""
