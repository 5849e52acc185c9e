"""Handovers: what a host takes at once is one row until the host's next sync.

A job that has ended by then is written once, in place of eight rows.

HANDOVER-1  Eight or more jobs that one host takes in one sync are one row of `handovers`. Each is of
            one task without GPUs, in its first attempt, and nothing else looks for it: it is no node
            of a workflow, no member of an array, no executor, and neither interactive, preemptible,
            supervised nor held ahead.
HANDOVER-2  To delete a job's place in its queue (`ready_jobs`) is to claim the job. A move of a
            queued job holds its place; where there is none, a host has just been handed the job.
HANDOVER-3  Every other transaction looks for handovers first, and runs again when they have been
            unpacked, unless it counts them itself or wants only jobs that are never handed over.
            A cancel of many leaves out jobs that are handed over, and cancels them once unpacked.
HANDOVER-4  A host's sync settles its own handovers: what succeeded ends in its own row, and if
            anything is left, all that is left gets the rows of any task.
HANDOVER-5  Nothing stays handed over for more than two seconds (`lapse_leases`), so a silent host
            has ordinary tasks by the time that its silence counts.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from itertools import compress

from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import Taken
from holdfast.moves.reports import Draft
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.sync.ends import ask_ends, split_ends, take_ends

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
    return part.jobs.job.plain and not part.ahead


async def settle_handovers(tx: Tx, drafts: Sequence[Draft], at: datetime) -> set[TaskKey]:
    """Take what hosts say of the jobs that they were handed (HANDOVER-4): end those that succeeded, put
    that into the drafts, and return their tasks. The rest has rows of its own then."""
    if not drafts:
        return set()
    good, _ = split_ends(drafts)
    left = {d.sync.host_id for d in drafts}
    ended: list[TaskKey] = []
    if good:
        (found,) = await tx.rows("settle_handovers", **ask_ends(good, at))
        ended = take_ends(good, found)
        left = left - {ends.draft.sync.host_id for ends in good} | set(found["kept"] or ())
    if left:
        await tx.rows("unpack_handovers", hosts=sorted(left))
    for d in drafts:
        d.orders = d.orders or d.sync.host_id in left  # perhaps it has not heard of some
    return set(ended)
