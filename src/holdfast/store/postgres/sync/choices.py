"""What hosts that sync together take: read, planned, and put into their answers."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import PASSED_SECONDS, Taken, TakeTerms, count_worth, plan_takes
from holdfast.core.states import JobEvent
from holdfast.core.transitions import JOB, sources
from holdfast.moves.reports import Draft, count_wanted
from holdfast.moves.values import OfferedJob, OfferedTask, TaskOffer
from holdfast.store.postgres.admission import as_capacity
from holdfast.store.postgres.connection.session import Rows, Tx
from holdfast.store.postgres.sync.kinds import Takable, TakableKinds

RESERVE_FROM = [str(s) for s in sources(JOB, JobEvent.RESERVE)]
Step = tuple[str, dict[str, Any]]


class TakeChoice(msgspec.Struct, frozen=True):
    """What hosts take: the statement that writes it, if they take anything, and what the order of each
    job needs."""

    steps: Sequence[Step] = ()
    offered: Sequence[OfferedJob] = ()

    @property
    def job_ids(self) -> Sequence[str]:
        """All that they take, in the order of the queues."""
        return [job_id for _, asked in self.steps for job_id in asked["jobs"]]


NOTHING = TakeChoice()


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
            chosen = list(self._chosen)
            begun, rooms, found = await tx.many(*ask_takes(ids, terms, worth, at, chosen))
            queued = await self._kinds.group(tx, found)
            cut = queued.count() >= worth
            choice = choose_jobs(drafts, terms, begun, rooms, queued, cut=cut)
            self._chosen.update(choice.job_ids)
        return choice

    def release(self, choice: TakeChoice) -> None:
        """Forget a choice: its jobs are taken, or queued as before."""
        self._chosen.difference_update(choice.job_ids)


def ask_takes(
    ids: Sequence[str], terms: TakeTerms, limit: int, at: datetime | None, but: Sequence[str] = ()
) -> list[Step]:
    """Return the statements whose rows `choose_jobs` goes by. but: jobs that are left out."""
    return [
        ("begin_takes", {"revision": terms.revision, "seconds": PASSED_SECONDS, "now": at}),
        ("read_room", {"ids": list(ids)}),
        ("read_takable", {"ids": list(ids), "limit": limit, "but": list(but)}),
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
    names = {host_id: d.name for host_id, d in by_host.items()}
    fixed = {"revision": terms.revision, "now": begun[0]["now"]}
    if not found.taken:
        return NOTHING
    asked = {**_ask(found.taken, terms, names), **fixed}
    offered = [queued.offered[part.jobs.job.job_id] for part in found.taken for _ in part.jobs.ids]
    return TakeChoice([("take_jobs", asked)], offered)


def _ask(parts: Sequence[Taken], terms: TakeTerms, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters of `take_jobs`. What jobs of a part have in common is said once."""
    jobs = [part.jobs.job for part in parts]
    return {
        "jobs": [job_id for part in parts for job_id in part.jobs.ids],
        "parts": [n for n, part in enumerate(parts, 1) for _ in part.jobs.ids],
        "ttls": [job.lease_ttl_seconds or terms.ttls[job.queue] for job in jobs],
        "host_ids": [part.host_id for part in parts],
        "hosts": [names[part.host_id] for part in parts],
        "incarnations": [part.incarnation for part in parts],
        "queues": sorted({job.queue for job in jobs}),
        "epochs": [epoch for part in parts for epoch in part.jobs.epochs],
        "devices": [
            f"{{{','.join(map(str, devices))}}}" for part in parts for devices in part.devices
        ],
        "ahead": [part.ahead for part in parts],
        "reserve_from": RESERVE_FROM,
    }


def give_taken(drafts: Sequence[Draft], choice: TakeChoice, found: Rows) -> None:
    """Put the offers of jobs that were taken into the drafts. A host whose job another transaction
    got first is not settled."""
    by_host = {d.sync.host_id: d for d in drafts}
    ((_, asked),), (row,) = choice.steps, found
    taken, secrets = row["ns"] or (), row["secrets"] or {}
    for n, attempt in sorted(zip(taken, row["attempts"] or (), strict=True)):
        at, part = n - 1, asked["parts"][n - 1] - 1
        job_id, host_id = asked["jobs"][at], asked["host_ids"][part]
        task = OfferedTask(
            key=TaskKey(job_id, 0, asked["epochs"][at] + 1),
            attempt=attempt,
            host_id=host_id,
            devices=_read_devices(asked["devices"][at]),
            lease_ttl_seconds=asked["ttls"][part],
            ahead=asked["ahead"][part],
        )
        offer = TaskOffer(task=task, job=choice.offered[at], secrets=secrets.get(job_id, {}))
        by_host[host_id].offers.append(offer)
    for d in drafts:
        d.settled = d.settled and len(taken) == len(choice.offered)


def _read_devices(text: str) -> tuple[int, ...]:
    return () if text == "{}" else tuple(map(int, text[1:-1].split(",")))
