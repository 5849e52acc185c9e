"""Handovers: what a host takes at once is one row until the host's next sync.

A job that has ended by then is written once, in place of eight rows.

HANDOVER-1  Eight or more jobs that one host takes in one sync are one row of `handovers`. Each is of
            one task without GPUs, in its first attempt, and nothing else looks for it: it is no node
            of a workflow, no member of an array, no executor, and neither interactive, preemptible
            nor supervised.
HANDOVER-2  To delete a job's place in its queue (`ready_jobs`) is to claim the job. A move of a
            queued job holds its place; where there is none, a host has just been handed the job.
HANDOVER-3  Every other transaction looks for handovers first, and runs again when they have been
            unpacked, unless it counts them itself or wants only jobs that are never handed over.
            A cancel of many leaves out jobs that are handed over, and cancels them once unpacked.
HANDOVER-4  A host's sync settles its own handovers: what succeeded ends in its own row, and if
            anything is left, all that is left gets the rows of any task. The process that handed
            them over settles them with the statement that locks the host.
HANDOVER-5  Nothing stays handed over for more than two seconds (`lapse_leases`), so a silent host
            has ordinary tasks by the time that its silence counts.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import compress
from typing import Any

from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import Taken
from holdfast.moves.reports import Draft
from holdfast.moves.rows import clean_text
from holdfast.store.postgres.connection.line import Found
from holdfast.store.postgres.connection.session import Step, Tx
from holdfast.store.postgres.sync.ends import Succeeded, ask_ends, split_ends, take_ends

HANDED_FROM = 8
"""Jobs that a host takes at once from which they are handed over (HANDOVER-1): a row for the host
costs less than these, and is one more to write where they do not end before its next sync."""
HANDED_SECONDS = 2.0
"""How long jobs stay handed over at most (HANDOVER-5)."""


def split_handed(taken: Sequence[Taken]) -> tuple[list[Taken], list[Taken]]:
    """Return what hosts are handed over, and what else they take."""
    counts = Counter[str]()
    for part in taken:
        counts[part.host_id] += len(part.jobs.ids) if _may_be_handed(part) else 0
    handed = [_may_be_handed(part) and counts[part.host_id] >= HANDED_FROM for part in taken]
    return list(compress(taken, handed)), list(compress(taken, (not one for one in handed)))


def _may_be_handed(part: Taken) -> bool:
    return part.jobs.job.plain


class EarlySettling:
    """What hosts say of jobs that they are thought to be handed, asked with the statement that locks the
    hosts: a round trip less, and it is written out while the server locks them.

    drafts: those of these hosts. now: the database's clock where it is None.
    """

    def __init__(self, drafts: Sequence[Draft], now: datetime | None) -> None:
        self._drafts = drafts
        self._now = now
        self.good: list[Succeeded] = []
        self.found: Mapping[str, Any] = {}

    def ask(self) -> Step | None:
        """Return the statement; None where no job succeeded."""
        self.good = _list_good(self._drafts)
        return ("settle_handovers", _ask_settling(self.good, self._now)) if self.good else None

    def take(self, found: Sequence[Found]) -> None:
        """Note what the statement has found, if there was one."""
        for one in found:
            (self.found,) = one.rows

    def list_asked(self) -> set[str]:
        """Return the hosts that were asked for."""
        return {ends.draft.sync.host_id for ends in self.good}

    def list_settled(self) -> set[str]:
        """Return the hosts of which an end was written."""
        tellers = [ends.draft.sync.host_id for ends in self.good for _ in ends.keys]
        return {tellers[n - 1] for n in self.found.get("ns") or ()}


async def settle_handovers(
    tx: Tx, drafts: Sequence[Draft], at: datetime, early: EarlySettling
) -> set[TaskKey]:
    """Take what hosts say of the jobs that they were handed (HANDOVER-4): end those that succeeded, put
    that into the drafts, and return their tasks. The rest has rows of its own then. early: what was
    asked before."""
    mine, asked = {d.sync.host_id for d in drafts}, early.list_asked()
    ended = take_ends(early.good, early.found) if early.found else []
    left = mine - asked | mine.intersection(early.found.get("kept") or ())
    good = _list_good([d for d in drafts if d.sync.host_id not in asked])
    if good:
        (found,) = await tx.rows("settle_handovers", **_ask_settling(good, at))
        ended += take_ends(good, found)
        left = left - {ends.draft.sync.host_id for ends in good} | set(found["kept"] or ())
    if left:
        await tx.rows("unpack_handovers", hosts=sorted(left))
    for d in drafts:
        d.orders = d.orders or d.sync.host_id in left  # perhaps it has not heard of some
    return set(ended)


def _list_good(drafts: Sequence[Draft]) -> list[Succeeded]:
    """Return the tasks that succeeded and may have been handed over: first attempts of one task."""
    good, _ = split_ends(drafts)
    return [few for few in map(_leave_firsts, good) if few.keys]


def _leave_firsts(ends: Succeeded) -> Succeeded:
    if all(key.epoch == 1 and key.rank == 0 for key in ends.keys):
        return ends
    both = [
        (k, f) for k, f in zip(ends.keys, ends.facts, strict=True) if (k.rank, k.epoch) == (0, 1)
    ]
    return Succeeded(ends.draft, [key for key, _ in both], [facts for _, facts in both])


def _ask_settling(good: Sequence[Succeeded], at: datetime | None) -> dict[str, Any]:
    """Return the parameters of `settle_handovers`. Each host is said once."""
    return {
        **ask_ends(good, at),
        "tellers": [n for n, ends in enumerate(good, 1) for _ in ends.keys],
        "hosts": [ends.draft.sync.host_id for ends in good],
        # Cleaned, as where their hosts are locked: nothing has looked at these yet.
        "incarnations": [clean_text(ends.draft.sync.incarnation) for ends in good],
    }
