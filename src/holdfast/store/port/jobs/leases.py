"""Leases: agents' syncs begin, renew and end them, and silent ones lapse."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.endings.rules import OperatorRule
from holdfast.core.placement.plan import JobPlacement
from holdfast.core.placement.takes import TakeTerms
from holdfast.moves.values import HostSync, HostSynced, LiveTask, NewJob, Submitted
from holdfast.store.port.clock import Now


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

    async def submit_to_host(
        self, job: NewJob, taker: HostSync, terms: TakeTerms, *, now: Now = None
    ) -> tuple[Submitted, HostSynced] | None:
        """Write one new job, and let a host fill its free room in the same transaction, as a sync
        with `takes` does. The host's answer holds the offers, perhaps of jobs that came before.

        Return None, and write nothing, where the job is not new or a quota is set; the caller then
        uses `submit_jobs`.
        """

    async def reserve_and_offer(
        self,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> tuple[list[str], list[HostSynced]]:
        """Reserve as `AdmissionStore.reserve` does, and in the same transaction answer the waiting
        syncs of hosts with their new offers and claims. polls: these syncs. Return the ids applied,
        and an answer for each host that has one. The next sync repeats an answer that never
        arrived, like any offer."""

    async def list_live_tasks(self, host_id: str) -> list[LiveTask]:
        """Return the host's live tasks, for watch settings that may have to be sent again."""

    async def lapse_leases(self, leading_since: datetime, *, now: Now = None) -> list[str]:
        """End tasks whose lease ended more than its margin ago, and for which leading_since + TTL
        has passed (LEASE-4): running or reserved → failed with lost="lease_lapsed"; preempting →
        preempted. Their jobs drain. Returns job ids."""

    async def settle_clock(self, *, now: Now = None) -> None:
        """Set times that a wrong clock put into the future to now: heartbeats, and the begins of
        reservations and drains. Let no lease end later than its TTL from now (LEASE-5)."""
