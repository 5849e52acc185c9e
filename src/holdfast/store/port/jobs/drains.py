"""Drains: reads of those that are ready or slow, and the write that completes one."""

from datetime import datetime
from typing import Protocol

from holdfast.core.endings.drain import Completion
from holdfast.core.records import JobRecord
from holdfast.moves.values import DrainListener, DrainSnapshot
from holdfast.store.port.clock import Now


class DrainStore(Protocol):
    """Draining jobs and their completion."""

    def watch_drains(self, tell: DrainListener) -> None:
        """Call `tell` from now on after each commit of this store in which drains began or tasks
        that were ordered to stop have ended. `tell` must not raise, and is not called where it is
        not known whether a commit succeeded."""

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
        """Return draining jobs, not forced yet, with tasks that were ordered to stop before a time
        and whose ends are not confirmed."""

    async def force_drain(self, job_id: str, epoch: int, *, now: Now = None) -> int:
        """Order the remaining tasks of a drain to end without grace, once. Event task.force_drained
        for each task. Return how many."""
