"""A submission that finds a waiting host with room: one transaction writes the job, and the host
takes it. This saves an idle host a second transaction and its wait for the disk."""

from datetime import datetime

import msgspec

from holdfast.core.placement.takes import TakeTerms, count_worth
from holdfast.core.records import JobRecord
from holdfast.moves.jobs import requests
from holdfast.moves.jobs.reports import AnswerBuilder
from holdfast.moves.values import HostSync, HostSynced, NewJob, Submitted
from holdfast.store.postgres.connection.session import Tx, to_json
from holdfast.store.postgres.jobs.same_spec import SameSpecJobs
from holdfast.store.postgres.jobs.submissions import ask_insert, make_row
from holdfast.store.postgres.jobs.takes import ask_takes, choose_jobs


async def submit_and_take(
    tx: Tx,
    job: NewJob,
    taker: HostSync,
    terms: TakeTerms,
    alike: SameSpecJobs,
    now: datetime | None,
) -> tuple[Submitted, HostSynced] | None:
    """Write a job, and let the host take jobs for its free room (`PostgresLeases.submit_to_host`).
    Locks are taken in the one order: queues, hosts, jobs."""
    limit = count_worth(1)
    row = make_row(job, requests.hash_spec(job.spec))
    new = {**ask_insert([job], now), "rows": to_json([row]), "limited_too": False}
    written, _, (read,) = await tx.many(
        ("insert_jobs", new),
        ("lock_hosts", {"ids": [taker.host_id]}),
        ask_takes([taker.host_id], terms, limit, now),
    )
    if not written:
        return None
    builder = AnswerBuilder(taker, "ok")
    rooms = [room for room in read["rooms"] or () if room["incarnation"] == taker.incarnation]
    builder.name = rooms[0]["name"] if rooms else ""
    queued = await alike.group(tx, read)
    cut = queued.count() >= limit
    take = choose_jobs([builder], terms, {**read, "rooms": rooms}, queued, cut=cut)
    if take is not None:
        take.add_offers([builder], *await tx.last(take.reservation.ask()))
    submitted = msgspec.convert(written[0], JobRecord)
    return Submitted(job=submitted, created=True), builder.answer()


async def warm_up(tx: Tx) -> None:
    """Run the statements of a submission for no job and no host, because a new server process needs
    some 10 ms to plan them, for which the first submission on a new connection would wait."""
    terms = TakeTerms(revision=0, ttls={}, whole=False)
    new = {**ask_insert([], None), "rows": "[]", "limited_too": False}
    await tx.many(
        ("insert_jobs", new),
        ("lock_hosts", {"ids": []}),
        ask_takes([], terms, count_worth(1), None),
    )
