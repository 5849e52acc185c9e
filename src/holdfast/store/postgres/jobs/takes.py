"""What hosts that sync together take: read, planned, and put into their answers."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.placement.takes import PASSED_SECONDS, TakeTerms, count_worth, plan_takes
from holdfast.moves.jobs.reports import AnswerBuilder, count_wanted
from holdfast.moves.values import OfferedJob, TaskOffer
from holdfast.store.postgres.connection.session import Rows, Step, Tx
from holdfast.store.postgres.jobs.admission import as_capacity
from holdfast.store.postgres.jobs.alike import AlikeJobs, Takable
from holdfast.store.postgres.jobs.reserve import Reservation


class Take(msgspec.Struct, frozen=True):
    """What hosts take, and by job, what its order needs."""

    reservation: Reservation
    offered: Mapping[str, OfferedJob]

    def give(self, builders: Sequence[AnswerBuilder], found: Rows) -> None:
        """Put the offers of jobs that were taken into the builders. Where another transaction got a
        job first, no host is settled."""
        by_host = {d.sync.host_id: d for d in builders}
        written = self.reservation.read(found)
        for one in written:
            task, job = self.reservation.make_task(one), self.offered[one.placement.job_id]
            by_host[task.host_id].offers.append(TaskOffer(task=task, job=job, secrets=one.secrets))
        for d in builders:
            d.settled = d.settled and len(written) == len(self.reservation.placements)


async def plan_take(
    tx: Tx, alike: AlikeJobs, builders: Sequence[AnswerBuilder], terms: TakeTerms, at: datetime
) -> Take | None:
    """Return what these hosts take, None for nothing. Their heartbeats are locked, so the room that is
    read stays theirs. Marks the builders that are settled."""
    worth = count_worth(sum(count_wanted(d.sync) for d in builders))
    ids = [d.sync.host_id for d in builders]
    begun, rooms, found = await tx.many(*ask_takes(ids, terms, worth, at))
    queued = await alike.group(tx, found)
    return choose_jobs(builders, terms, begun, rooms, queued, cut=queued.count() >= worth)


def ask_takes(ids: Sequence[str], terms: TakeTerms, limit: int, at: datetime | None) -> list[Step]:
    """Return the statements whose rows `choose_jobs` goes by."""
    return [
        ("begin_takes", {"revision": terms.revision, "seconds": PASSED_SECONDS, "now": at}),
        ("read_room", {"ids": list(ids)}),
        ("read_takable", {"ids": list(ids), "limit": limit}),
    ]


def choose_jobs(
    builders: Sequence[AnswerBuilder],
    terms: TakeTerms,
    begun: Rows,
    rooms: Rows,
    queued: Takable,
    *,
    cut: bool,
) -> Take | None:
    """Return what these hosts take of `queued`. cut: there may be more. Marks the builders that are
    settled."""
    if not begun or not begun[0]["allowed"]:
        return None
    by_host = {d.sync.host_id: d for d in builders}
    found = plan_takes(
        queued.groups, [as_capacity(row) for row in rooms], terms, begun[0]["passed"], cut=cut
    )
    for host_id in found.settled:
        by_host[host_id].settled = terms.whole
    if not found.taken:
        return None
    ttls: dict[str, float] = {}
    offered: dict[str, OfferedJob] = {}
    for part in found.taken:
        job = part.jobs.job
        ttls |= dict.fromkeys(part.jobs.ids, job.lease_ttl_seconds or terms.ttls[job.queue])
        offered |= dict.fromkeys(part.jobs.ids, queued.offered[job.job_id])
    reservation = Reservation(
        found.placements,
        ttls,
        {host_id: d.name for host_id, d in by_host.items()}.__getitem__,
        begun[0]["now"],
        taken=True,
        revision=terms.revision,
    )
    return Take(reservation, offered)
