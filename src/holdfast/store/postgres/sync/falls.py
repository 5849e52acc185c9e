"""The last ends of a gang that fell, its decision and its next start, in one transaction.

FALL-2  It is what the sync, the completion of the drain and the reservation would write one after the
        other, under the locks and guards of all three. Where anything else is at hand it is undone,
        and these three do it.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.endings.rules import OperatorRule
from holdfast.core.host_faults import Hindrance
from holdfast.core.records import JobRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostState, JobState
from holdfast.moves import dispatch, drains
from holdfast.moves.quotas import sets_quota
from holdfast.moves.reports import Draft
from holdfast.moves.values import HostSync
from holdfast.store.port.drains import Fall, FallTaken
from holdfast.store.postgres.admission import take_room
from holdfast.store.postgres.connection.session import Rows, Step, Tx
from holdfast.store.postgres.leases import (
    answer_polls,
    ask_for_polls,
    ask_hosts,
    ask_renewals,
    take_renewals,
)
from holdfast.store.postgres.moves import ask_moves, list_writes, take_moves
from holdfast.store.postgres.settings import ASK_SWITCHES, take_switches


class OtherFallError(Exception):
    """More is to be done than one transaction does: nothing of it is written."""


async def take_fall(
    tx: Tx,
    environment: Mapping[str, Value],
    sync: HostSync,
    fall: Fall,
    rules: Sequence[OperatorRule],
    now: datetime | None,
) -> FallTaken:
    """Take a fall (`DrainStore.take_fall`). Raises OtherFallError."""
    draft = Draft(sync, "ok")
    _, queues, switch, off, limited, locked, capacity, hosts, *found, records = await tx.many(
        ("keep_plans", None),
        ("share_queues", {"names": [fall.queue]}),
        *ASK_SWITCHES,
        ("look_for_quotas", None),
        ("lock_hosts", {"ids": [sync.host_id]}),
        ("read_room_but", {"id": sync.host_id, "but": fall.job_id}),
        ask_hosts([draft], now),
        *ask_moves([fall.job_id]),
        ("read_jobs_as_kept", {"ids": [fall.job_id]}),
    )
    _check(not limited[0]["limited"] and not sets_quota(environment))
    _check(bool(queues) and not queues[0]["paused"])
    at = _greet(draft, hosts)
    m = take_moves(at, *found)
    job = dispatch.take_fall(m, draft, fall.job_id, fall.queue, rules)
    if job is None:
        raise OtherFallError
    (read,) = msgspec.convert(records, list[JobRecord])
    restart = await fall.decide(dispatch.expect_drain(m, job, read))
    if restart is None or {task.host_id for task in restart.placement.tasks} != {sync.host_id}:
        raise OtherFallError
    drains.complete_drain(m, job, restart.completion)
    dispatch.dispatch_at_once(m, job, take_switches(environment, switch, off))
    _check(job.state is JobState.QUEUED)
    room = [queues, limited, locked, capacity, [{"at": at}]]
    ttls = {job.id: restart.ttl_seconds}
    taken = await take_room(tx, environment, [restart.placement], ttls, now, room)
    if taken is None:
        raise OtherFallError
    poll = HostSync(host_id=sync.host_id, incarnation=sync.incarnation, live=sync.live)
    drafts, asked = ask_for_polls([poll], [restart.placement], at)
    writes: list[Step] = [*list_writes(m)]
    renewals = ask_renewals([draft], at)
    rows = await tx.last(*writes, taken.ask(), *asked, *renewals)
    written, *orders = rows[len(writes) : len(rows) - len(renewals)]
    if renewals:
        take_renewals([draft], rows[-1])
    for answer in answer_polls(drafts, orders):
        draft.offers += answer.offers
    return FallTaken(
        synced=msgspec.structs.replace(draft.answer(), fell=True),
        started=bool(taken.list_applied(written)),
        news=tuple(m.drain_news),
    )


def _check(alone: bool) -> None:
    if not alone:
        raise OtherFallError


def _greet(draft: Draft, hosts: Rows) -> datetime:
    """Note what was found of the host, and return the time. Only of one of which nothing else is to
    be told or asked."""
    _check(bool(hosts) and hosts[0]["fresh"])
    (host,) = hosts
    told = msgspec.convert(host["faults"], tuple[Hindrance, ...])
    same = draft.sync.faults is None or draft.sync.faults == told
    quiet = host["flagged_dead_at"] is None and not host["orders"]
    _check(same and quiet and host["state"] == HostState.ACTIVE)
    draft.name, draft.reads = host["name"], host["reads"]
    at: datetime = host["now"]
    return at
