"""Ranks that wait for each other, and members of supervised jobs, which fall and are replaced."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.core.causes import Cause
from holdfast.core.endings.replace import Replacement
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import JobPlacement
from holdfast.core.records import JobRecord
from holdfast.moves.values import DueMember
from holdfast.store.port.clock import Now


class MemberStore(Protocol):
    """The falls and replacements of single members while the others run on, and the sections of
    ranks of any gang, because these excuse the ranks that wait for them (EXCUSE-1)."""

    async def tell_sections(
        self, host_id: str, told: Sequence[tuple[TaskKey, float]], *, now: Now = None
    ) -> None:
        """Write for how many seconds from now on the sections of ranks on this host excuse other
        ranks; 0: not any more. A key that does not run there changes nothing."""

    async def find_excuses(
        self, keys: Sequence[TaskKey], *, now: Now = None
    ) -> dict[TaskKey, float]:
        """Return for how many seconds more other ranks' sections excuse these ranks; ranks without
        an excuse are missing."""

    async def list_members(self, limit: int, *, now: Now = None) -> list[DueMember]:
        """Return members that need a decision: fallen ones, and replacements that have not started
        yet."""

    async def replace_members(
        self, plans: Sequence[tuple[TaskKey, Replacement]], *, now: Now = None
    ) -> list[TaskKey]:
        """Carry out the decisions on fallen members, in their order and in one transaction. Each
        member is `blocked` until it has another host (event task.replaced) or, if parked, until a
        person releases it (task.parked); its charge and a barred host are written too. A member
        that does not go on begins the drain of its job, as the trigger.

        Return the keys whose decisions were carried out; those of jobs that drain, or that another
        call has decided on, are missing.
        """

    async def unpark_members(self, job_id: str, reason: str, *, now: Now = None) -> JobRecord:
        """Place parked members again, for a person's `retry` of a job that goes on (event
        task.released). Raises Conflict where it has none, NotFound where there is no such job."""

    async def stop_member(
        self, key: TaskKey, cause: Cause, reason: str, *, now: Now = None
    ) -> bool:
        """Stop one live member while the others run on. Return False where the key names none, or
        one that is being stopped already."""

    async def seat_members(
        self, placements: Sequence[JobPlacement], ttls: Mapping[str, float], *, now: Now = None
    ) -> list[str]:
        """Apply the placements of blocked members under the guards of `reserve`: each job's get a
        new epoch of their own (MEMBER-1), and their start barrier is open. Event task.reserved for
        each. Returns job ids."""

    async def release_members(self, reservation_seconds: float, *, now: Now = None) -> list[str]:
        """Release reservations of replacements that were never offered to their host within
        `reservation_seconds`. Return job ids."""
