"""The jobs that hosts of one batch of syncs take: read candidates, plan, and add offers to the
answers."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.placement.takes import PASSED_SECONDS, TakeTerms, count_worth, plan_takes
from holdfast.moves.jobs.reports import AnswerBuilder, count_wanted
from holdfast.moves.values import OfferedJob, TaskOffer
from holdfast.store.postgres.connection.session import Rows, Step, Tx
from holdfast.store.postgres.jobs.admission import as_capacity
from holdfast.store.postgres.jobs.reserve import Reservation
from holdfast.store.postgres.jobs.same_spec import SameSpecJobs, Takable


class HostTake(msgspec.Struct, frozen=True):
    """The jobs that hosts take. offered: job id → the fields that its order needs."""

    reservation: Reservation
    offered: Mapping[str, OfferedJob]

    def add_offers(self, builders: Sequence[AnswerBuilder], found: Rows) -> None:
        """Add the offers of the reserved jobs to the builders of the hosts' answers. Where another
        transaction reserved one of the jobs first, no host counts as settled."""
        by_host = {d.sync.host_id: d for d in builders}
        written = self.reservation.read(found)
        for one in written:
            task, job = self.reservation.make_task(one), self.offered[one.placement.job_id]
            by_host[task.host_id].offers.append(TaskOffer(task=task, job=job, secrets=one.secrets))
        for d in builders:
            d.settled = d.settled and len(written) == len(self.reservation.placements)


async def plan_take(
    tx: Tx, alike: SameSpecJobs, builders: Sequence[AnswerBuilder], terms: TakeTerms, at: datetime
) -> HostTake | None:
    """Return the jobs that these hosts take; None where they take none. The hosts' rows are locked,
    so their room cannot shrink meanwhile. A host is marked settled where no job is left that could
    start there."""
    worth = count_worth(sum(count_wanted(d.sync) for d in builders))
    ids = [d.sync.host_id for d in builders]
    ((read,),) = await tx.many(ask_takes(ids, terms, worth, at))
    queued = await alike.group(tx, read)
    return choose_jobs(builders, terms, read, queued, cut=queued.count() >= worth)


def ask_takes(ids: Sequence[str], terms: TakeTerms, limit: int, at: datetime | None) -> Step:
    """Return the query whose row `choose_jobs` needs."""
    asked = {"revision": terms.revision, "seconds": PASSED_SECONDS, "now": at}
    return "read_takes", {**asked, "ids": list(ids), "limit": limit}


def choose_jobs(
    builders: Sequence[AnswerBuilder],
    terms: TakeTerms,
    read: Mapping[str, Any],
    queued: Takable,
    *,
    cut: bool,
) -> HostTake | None:
    """Return the jobs of `queued` that these hosts take. read: the row of `read_takes`. cut: more
    jobs may be queued than these. A host is marked settled where no job is left that could start
    there."""
    if not read["allowed"]:
        return None
    by_host = {d.sync.host_id: d for d in builders}
    rooms = [as_capacity(row) for row in read["rooms"] or ()]
    found = plan_takes(queued.groups, rooms, terms, read["passed"], cut=cut)
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
        read["now"],
        taken=True,
        revision=terms.revision,
    )
    return HostTake(reservation, offered)
