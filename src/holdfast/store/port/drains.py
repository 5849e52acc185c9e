"""Drains: ready, slow, completed."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.core.endings.drain import Completion
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.placement.plan import Capacity, JobPlacement
from holdfast.core.records import JobRecord
from holdfast.moves.values import (
    DrainNews,
    DrainSnapshot,
    HostSync,
    HostSynced,
    Restarted,
    StoreValue,
    TellDrains,
)
from holdfast.store.port.clock import Now


class Restart(StoreValue, frozen=True, kw_only=True):
    """How a drain ends whose job goes on at once, and where: as `DrainStore.restart_drained` takes
    it."""

    completion: Completion
    placement: JobPlacement
    ttl_seconds: float


class Fall(Protocol):
    """A gang whose every rank has ended on one host, as that host's sync tells."""

    @property
    def job_id(self) -> str:
        """The gang."""

    @property
    def queue(self) -> str:
        """The queue that the gang is in."""

    async def decide(self, drain: DrainSnapshot) -> Restart | None:
        """Return what becomes of it; None where that is for the completer to find out. It is called
        within the transaction, so it waits for nothing that may take long."""


class FallTaken(StoreValue, frozen=True, kw_only=True):
    """A fall that was taken. synced: the host's answer, with the orders of the next attempt where
    that has `started`. news: what `watch_drains` would have told, and does not."""

    synced: HostSynced
    started: bool
    news: tuple[DrainNews, ...] = ()


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

    async def take_fall(
        self, sync: HostSync, fall: Fall, *, rules: Sequence[OperatorRule] = (), now: Now = None
    ) -> FallTaken | None:
        """Take a sync that tells of the ends of every rank of a running gang and of what lives, decide
        its drain, and place and order its next attempt on the same host, in one transaction (FALL-2).
        None, and nothing was written, where anything else is to be done or may decide: the sync, its
        drain and the start are then transactions of their own."""

    async def list_slow_drains(self, before: datetime) -> list[JobRecord]:
        """Return draining jobs, not forced yet, with tasks that were told to stop before a time and
        have not confirmed it."""

    async def force_drain(self, job_id: str, epoch: int, *, now: Now = None) -> int:
        """Tell the remaining tasks of a drain to end without grace, once. Event task.force_drained
        for each task. Returns how many."""
