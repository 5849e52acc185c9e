"""What hosts that sync together take: read, planned, and put into their answers."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import PASSED_SECONDS, TakeTerms, count_worth, plan_takes
from holdfast.core.states import JobEvent
from holdfast.core.transitions import JOB, sources
from holdfast.moves.reports import Draft, count_wanted
from holdfast.moves.values import OfferedJob, OfferedTask, TaskOffer
from holdfast.store.postgres.admission import as_capacity
from holdfast.store.postgres.connection.session import Rows, Tx
from holdfast.store.postgres.sync.kinds import Takable, TakableKinds

RESERVE_FROM = [str(s) for s in sources(JOB, JobEvent.RESERVE)]
Step = tuple[str, dict[str, Any]]
_TAKE_COLUMNS = ("jobs", "epochs", "ttls", "host_ids", "hosts", "incarnations", "devices", "ahead")


class TakeChoice(msgspec.Struct, frozen=True):
    """What hosts take: the parameters of `take_jobs`, and what the order of each needs."""

    asked: dict[str, Any]
    offered: Sequence[OfferedJob]

    @property
    def steps(self) -> list[Step]:
        """The statements that take it; none where it is nothing."""
        return [("take_jobs", self.asked)] if self.offered else []

    @property
    def job_ids(self) -> Sequence[str]:
        """The jobs that are chosen."""
        return self.asked["jobs"] if self.offered else ()


NOTHING = TakeChoice({}, ())


class Choices:
    """What transactions of this process choose to take, until they have ended, so that those beside
    them choose other jobs (TAKE-4).

    A transaction leaves alone what another has locked, so without this the later one of two would
    find the jobs of its plan gone, and its host idle.
    """

    def __init__(self, kinds: TakableKinds) -> None:
        self._kinds = kinds
        self._chosen: set[str] = set()
        self._gate = asyncio.Lock()  # from reading the queues to the choice

    async def choose(
        self, tx: Tx, drafts: Sequence[Draft], terms: TakeTerms, at: datetime
    ) -> TakeChoice:
        """Return what these hosts take, which may be nothing. Must be followed by `release`.

        Their heartbeats are locked, so the room that is read stays theirs. Marks the drafts that are
        settled.
        """
        worth = count_worth(sum(count_wanted(d.sync) for d in drafts))
        ids = [d.sync.host_id for d in drafts]
        async with self._gate:
            # One that ends while the queues are read may still be queued in what is read.
            chosen = frozenset(self._chosen)
            limit = worth + len(chosen)
            begun, rooms, found = await tx.many(*ask_takes(ids, terms, limit, at))
            queued = await self._kinds.group(tx, found)
            left = queued.leave_out(chosen)
            cut = queued.count() >= limit or left.count() > worth
            choice = choose_jobs(drafts, terms, begun, rooms, left.limit(worth), cut=cut)
            self._chosen.update(choice.job_ids)
        return choice

    def release(self, choice: TakeChoice) -> None:
        """Forget a choice: its jobs are taken, or queued as before."""
        self._chosen.difference_update(choice.job_ids)


def ask_takes(ids: Sequence[str], terms: TakeTerms, limit: int, at: datetime | None) -> list[Step]:
    """Return the statements whose rows `choose_jobs` goes by."""
    return [
        ("begin_takes", {"revision": terms.revision, "seconds": PASSED_SECONDS, "now": at}),
        ("read_room", {"ids": list(ids)}),
        ("read_takable", {"ids": list(ids), "limit": limit}),
    ]


def choose_jobs(
    drafts: Sequence[Draft],
    terms: TakeTerms,
    begun: Rows,
    rooms: Rows,
    queued: Takable,
    *,
    cut: bool,
) -> TakeChoice:
    """Return what these hosts take of `queued`. cut: there may be more. Marks the drafts that are
    settled."""
    if not begun or not begun[0]["allowed"]:
        return NOTHING
    by_host = {d.sync.host_id: d for d in drafts}
    found = plan_takes(
        queued.groups,
        [as_capacity(row) for row in rooms],
        terms,
        begun[0]["passed"],
        ahead={d.sync.host_id: d.sync.ahead for d in drafts},
        cut=cut,
    )
    for host_id in found.settled:
        by_host[host_id].settled = terms.whole
    asked: dict[str, Any] = {name: [] for name in _TAKE_COLUMNS}
    offered: list[OfferedJob] = []
    for taken in found.taken:
        job, count = taken.jobs.job, len(taken.jobs.ids)
        offered += [queued.offered[job.job_id]] * count
        asked["jobs"] += taken.jobs.ids
        asked["epochs"] += taken.jobs.epochs
        asked["ttls"] += [job.lease_ttl_seconds or terms.ttls[job.queue]] * count
        asked["host_ids"] += [taken.host_id] * count
        asked["hosts"] += [by_host[taken.host_id].name] * count
        asked["incarnations"] += [taken.incarnation] * count
        asked["devices"] += [f"{{{','.join(map(str, devices))}}}" for devices in taken.devices]
        asked["ahead"] += [taken.ahead] * count
    asked["queues"] = sorted({taken.jobs.job.queue for taken in found.taken})
    asked |= {"revision": terms.revision, "reserve_from": RESERVE_FROM, "now": begun[0]["now"]}
    return TakeChoice(asked, offered)


def give_taken(drafts: Sequence[Draft], choice: TakeChoice, rows: Rows) -> None:
    """Put the offers of jobs that were taken into the drafts. A host whose job another transaction
    got first is not settled."""
    by_host = {d.sync.host_id: d for d in drafts}
    asked, (found,) = choice.asked, rows
    taken, secrets = found["ns"] or (), found["secrets"] or {}
    for n, attempt in sorted(zip(taken, found["attempts"] or (), strict=True)):
        at = n - 1
        job_id, host_id = asked["jobs"][at], asked["host_ids"][at]
        task = OfferedTask(
            key=TaskKey(job_id, 0, asked["epochs"][at] + 1),
            attempt=attempt,
            host_id=host_id,
            devices=_read_devices(asked["devices"][at]),
            lease_ttl_seconds=asked["ttls"][at],
            ahead=asked["ahead"][at],
        )
        offer = TaskOffer(task=task, job=choice.offered[at], secrets=secrets.get(job_id, {}))
        by_host[host_id].offers.append(offer)
    if len(taken) < len(choice.offered):
        for d in drafts:
            d.settled = False


def _read_devices(text: str) -> tuple[int, ...]:
    return () if text == "{}" else tuple(map(int, text[1:-1].split(",")))
