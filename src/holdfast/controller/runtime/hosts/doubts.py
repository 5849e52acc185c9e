"""Doubts about answers of absence.

DOUBT-1  What was not found ends no work, signs no browser out and takes no secret's right away
         before a second look, on another connection, has not found it either. Where the second look
         finds it, or brings no answer, the store counts as away: the caller gets Unavailable, so a
         host is told nothing of such a report, and its leases' deadlines stay as they were.
DOUBT-2  A doubt lasts one look: where both agree, the verdict stands at once, for any number of
         tasks. Where nothing is absent, no statement is sent.
DOUBT-3  Bytes are deleted by the rows of an answer that names them, and never because an answer does
         not: a query of orphans that brings nothing deletes nothing.
"""

from collections.abc import Sequence
from functools import reduce
from operator import or_

from holdfast.controller.runtime.hosts.group_commit import GroupCommit
from holdfast.controller.runtime.outages import Outages
from holdfast.core.ids import TaskKey
from holdfast.errors import Unavailable
from holdfast.moves.rows import is_storable_key
from holdfast.moves.values import HostSync, HostSynced
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.sync.witness import NOTHING, HeldTask, Sought


class Doubts:
    """Looks a second time for hosts, tasks, secrets, jobs and runs that a first look did not find. One
    statement looks for everything that callers doubt at the same time."""

    def __init__(self, store: PostgresStore, outages: Outages) -> None:
        self._store = store
        self._outages = outages
        self._looks = GroupCommit("second look", lambda doubt: str(id(doubt)), self._look, outages)

    async def _look(self, doubts: Sequence[Sought]) -> Sequence[Sought]:
        found = await self._store.witness.look(reduce(or_, doubts))
        return [found & doubt for doubt in doubts]

    async def confirm(self, absent: Sought) -> None:
        """Return if a second look finds nothing of `absent` either. Raises Unavailable if it finds
        something, or brings no answer."""
        if absent == NOTHING:
            return
        if await self._looks.submit(absent) != NOTHING:
            error = Unavailable(
                "the database gave two answers: what one connection did not find, another did; "
                "nothing is decided by either"
            )
            self._outages.note_failure(error)
            raise error

    async def confirm_syncs(self, syncs: Sequence[HostSync], answers: Sequence[HostSynced]) -> None:
        """Confirm the hosts and tasks that were not found for a batch of syncs, which is answered
        as a whole or not at all, because one connection gave all of these answers."""
        held = {s.host_id: s.incarnation for s in syncs}
        await self.confirm(
            Sought(
                hosts=frozenset(a.host_id for a in answers if a.status == "unknown"),
                tasks=frozenset(
                    HeldTask(key, a.host_id, held[a.host_id]) for a in answers for key in a.absent
                ),
            )
        )

    async def confirm_tasks(
        self, keys: Sequence[TaskKey], host_id: str | None = None, incarnation: str | None = None
    ) -> None:
        """Confirm that none of these tasks holds its lease: on that host, or anywhere where no host
        is given."""
        tasks = (HeldTask(key, host_id, incarnation) for key in keys if is_storable_key(key))
        await self.confirm(Sought(tasks=frozenset(tasks)))
