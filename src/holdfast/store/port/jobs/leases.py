"""Leases: begun, renewed and ended by agents' syncs, or lapsed."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.endings.rules import OperatorRule
from holdfast.core.placement.plan import JobPlacement
from holdfast.core.placement.takes import TakeTerms
from holdfast.moves.values import HostSync, HostSynced, LiveTask, NewJob, Submitted
from holdfast.store.port.clock import Now


class LeaseStore(Protocol):
    """What agents report, and what their silence means."""

    async def sync_hosts(
        self,
        syncs: Sequence[HostSync],
        *,
        rules: Sequence[OperatorRule] = (),
        terms: TakeTerms | None = None,
        now: Now = None,
    ) -> list[HostSynced]:
        """Take many hosts' syncs in one transaction; answers come in the same order.

        rules: the operators' own, by which a drain that begins here says its cause (CLASSIFY-4).

        terms: where hosts whose syncs say `takes` fill their free room at once, by
        `core.placement.takes`: each job taken is reserved and offered like any other, with
        AttemptRecord.road `host`. None: nowhere.

        Per host: its heartbeat (clears `flagged_dead_at` with a host.recovered event), beats,
        renewals, starts and ends. A start makes its task running; when all tasks run, attempt and
        job do too (event job.started).
        An end with exit 0 by itself → done; otherwise failed, or preempted when the task was
        preempting and `facts.stopped`. A job whose tasks are all done succeeds here (attempt ended,
        task rows deleted, events job.started if it was missed, and job.succeeded). A failed task
        makes its job drain: trigger on record, siblings preempting, event job.draining.
        `leaving` → the host is terminated after its ends are taken; one that leaves ends untold, of
        tasks that have begun or that it says live, is as before, and given no orders.
        A key that matches no live task of this host and incarnation is `lost` if reported live,
        `refused` if reported ended (STORE-2). An end whose task has already ended under the same
        key is acknowledged again, not refused.
        """

    async def submit_to_host(
        self, job: NewJob, taker: HostSync, terms: TakeTerms, *, now: Now = None
    ) -> tuple[Submitted, HostSynced] | None:
        """Write one new job, and let a host fill its free room in the same transaction, as a sync
        that `takes` does. Its answer has the offers, which are perhaps of jobs that came before.

        Returns None, and writes nothing, where the job is not new or a quota is set: it is then
        `submit_jobs` that decides.
        """

    async def reserve_and_offer(
        self,
        placements: Sequence[JobPlacement],
        ttls: Mapping[str, float],
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> tuple[list[str], list[HostSynced]]:
        """Reserve as `AdmissionStore.reserve` does, and in the same transaction offer, or ask to
        claim, what a sync of each of these hosts would be given then: their calls wait, and say
        what `polls` says. Returns the ids applied, and the answer of each host that has one. An
        answer that never arrives is given to the next sync, like any offer."""

    async def list_live_tasks(self, host_id: str) -> list[LiveTask]:
        """Return the host's live tasks, for watch settings that may have to be sent again."""

    async def lapse_leases(self, leading_since: datetime, *, now: Now = None) -> list[str]:
        """End tasks whose lease ended more than its margin ago, and for which leading_since + TTL
        has passed (LEASE-4): running or reserved → failed with lost="lease_lapsed"; preempting →
        preempted. Their jobs drain. Returns job ids."""

    async def settle_clock(self, *, now: Now = None) -> None:
        """LEASE-5: move times that a wrong clock put into the future to now: heartbeats, and when
        reservations and drains began. No lease ends later than its TTL from now."""
