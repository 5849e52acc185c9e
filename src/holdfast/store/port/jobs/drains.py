"""Drains: ready, slow, completed."""

from datetime import datetime
from typing import Protocol

from holdfast.core.endings.drain import Completion
from holdfast.core.records import JobRecord
from holdfast.moves.values import DrainSnapshot, TellDrains
from holdfast.store.port.clock import Now


class DrainStore(Protocol):
    """Draining jobs and their completion."""

    def watch_drains(self, tell: TellDrains) -> None:
        """Call `tell` from now on after each commit of this store's in which drains began or tasks
        that had to stop have gone. It must not raise, and is not called where the fate of a commit
        is unknown."""

    async def list_drains(self, limit: int, *, now: Now = None) -> list[DrainSnapshot]:
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

    async def list_slow_drains(self, before: datetime) -> list[JobRecord]:
        """Return draining jobs, not forced yet, with tasks that were told to stop before a time and
        have not confirmed it."""

    async def force_drain(self, job_id: str, epoch: int, *, now: Now = None) -> int:
        """Tell the remaining tasks of a drain to end without grace, once. Event task.force_drained
        for each task. Returns how many."""
