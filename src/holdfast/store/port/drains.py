"""Drains: ready, slow, completed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.endings.drain import Completion
from holdfast.core.placement.plan import Capacity, JobPlacement
from holdfast.core.records import JobRecord
from holdfast.moves.values import DrainSnapshot, HostSync, Restarted, TellDrains
from holdfast.store.port.clock import Now


class DrainStore(Protocol):
    """Draining jobs and their completion."""

    def watch_drains(self, tell: TellDrains) -> None:
        """Call `tell` from now on after each commit of this store's in which drains began or tasks
        that had to stop have gone. It must not raise, and is not called where the fate of a commit
        is unknown."""

    async def list_drains(self, limit: int) -> list[DrainSnapshot]:
        """Return draining jobs none of whose tasks holds a lease: ready to be completed."""

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

    async def read_open_room(
        self, job_id: str, silence_seconds: float | None, *, now: Now = None
    ) -> tuple[Capacity, ...] | None:
        """Return the free room of active hosts that were heard in the last `silence_seconds` (of all
        where it is None), for a job that is about to be queued in its old place; None where more
        than room decides whether it may start: a job that waits before it, a member of another job,
        a limit, a quota or a share."""

    async def restart_drained(
        self,
        job_id: str,
        epoch: int,
        completion: Completion,
        placement: JobPlacement,
        ttl: float,
        polls: Sequence[HostSync],
        *,
        now: Now = None,
    ) -> Restarted | None:
        """Complete as `complete_drain` does at once, and in the same transaction reserve the next
        attempt and answer `polls`, as `LeaseStore.reserve_and_offer` does. The attempt is left to
        admission where the retry was not dispatched, the room is not free any more, the queue is
        paused or a quota is in force. None when another call completed it.

        placement: under the epoch of the completed job. completion: without a quarantine.
        """

    async def list_slow_drains(self, before: datetime) -> list[JobRecord]:
        """Return draining jobs, not forced yet, with tasks that were told to stop before a time and
        have not confirmed it."""

    async def force_drain(self, job_id: str, epoch: int, *, now: Now = None) -> int:
        """Tell the remaining tasks of a drain to end without grace, once. Event task.force_drained
        for each task. Returns how many."""
