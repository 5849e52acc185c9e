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
from holdfast.store.postgres.sync.handovers import split_handed
from holdfast.store.postgres.sync.kinds import Takable, TakableKinds

RESERVE_FROM = [str(s) for s in sources(JOB, JobEvent.RESERVE)]
Step = tuple[str, dict[str, Any]]


class TakeChoice(msgspec.Struct, frozen=True):
    """What hosts take: the statements that write it, and for each what the order of each job needs.
    job_ids: all of them, in the order of the queues."""

    steps: Sequence[Step] = ()
    offered: Sequence[Sequence[OfferedJob]] = ()
    job_ids: Sequence[str] = ()


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
        # Hosts that have told of nothing since they were handed jobs.
        self._handed: set[str] = set()

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

    def note_handed(self, choice: TakeChoice) -> None:
        """Remember the hosts that were handed jobs: their next syncs will tell of those."""
        for statement, asked in choice.steps:
            if statement == "hand_over":
                self._handed.update(asked["host_ids"])

    def pick_handed(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Return the drafts of hosts that are thought to be handed jobs still, and forget these."""
        picked = [d for d in drafts if d.sync.host_id in self._handed]
        self._handed.difference_update(d.sync.host_id for d in picked)
        return picked

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
        queued.groups, [as_capacity(row) for row in rooms], terms, begun[0]["passed"], cut=cut
    )
    for host_id in found.settled:
        by_host[host_id].settled = terms.whole
    names = {host_id: d.name for host_id, d in by_host.items()}
    fixed = {"revision": terms.revision, "now": begun[0]["now"]}
    handed, others = split_handed(found.taken)
    steps: list[Step] = []
    offered: list[list[OfferedJob]] = []
    for statement, parts in (("take_jobs", others), ("hand_over", handed)):
        if parts:
            steps.append((statement, {**_ask(statement, parts, terms, names), **fixed}))
            jobs = [(queued.offered[part.jobs.job.job_id], len(part.jobs.ids)) for part in parts]
            offered.append([job for job, count in jobs for _ in range(count)])
    return TakeChoice(steps, offered, [job_id for part in found.taken for job_id in part.jobs.ids])


def _ask(
    statement: str, parts: Sequence[Taken], terms: TakeTerms, names: Mapping[str, str]
) -> dict[str, Any]:
    """Return the parameters of a statement. What jobs of a part have in common is said once."""
    jobs = [part.jobs.job for part in parts]
    asked: dict[str, Any] = {
        "jobs": [job_id for part in parts for job_id in part.jobs.ids],
        "parts": [n for n, part in enumerate(parts, 1) for _ in part.jobs.ids],
        "ttls": [job.lease_ttl_seconds or terms.ttls[job.queue] for job in jobs],
        "host_ids": [part.host_id for part in parts],
        "hosts": [names[part.host_id] for part in parts],
        "incarnations": [part.incarnation for part in parts],
        "queues": sorted({job.queue for job in jobs}),
    }
    if statement == "hand_over":
        return {
            **asked,
            "job_queues": [job.queue for job in jobs],
            "projects": [job.project for job in jobs],
            "cpu_slots": [job.cpu_slots for job in jobs],
            "memory_bytes": [job.memory_bytes for job in jobs],
        }
    return {
        **asked,
        "epochs": [epoch for part in parts for epoch in part.jobs.epochs],
        "devices": [
            f"{{{','.join(map(str, devices))}}}" for part in parts for devices in part.devices
        ],
        "reserve_from": RESERVE_FROM,
    }


def give_taken(drafts: Sequence[Draft], choice: TakeChoice, found: Sequence[Rows]) -> None:
    """Put the offers of jobs that were taken into the drafts. A host whose job another transaction
    got first is not settled."""
    by_host = {d.sync.host_id: d for d in drafts}
    missed = False
    for (_, asked), offered, (row,) in zip(choice.steps, choice.offered, found, strict=True):
        taken, secrets = row["ns"] or (), row["secrets"] or {}
        missed = missed or len(taken) < len(offered)
        job_ids, parts = asked["jobs"], asked["parts"]
        host_ids, ttls = asked["host_ids"], asked["ttls"]
        epochs, devices = asked.get("epochs"), asked.get("devices")
        attempts = row["attempts"] or [1] * len(taken)  # what is handed over has its first
        for n, attempt in sorted(zip(taken, attempts, strict=True)):
            at, part = n - 1, parts[n - 1] - 1
            job_id, host_id = job_ids[at], host_ids[part]
            task = OfferedTask(
                key=TaskKey(job_id, 0, epochs[at] + 1 if epochs else 1),
                attempt=attempt,
                host_id=host_id,
                devices=_read_devices(devices[at]) if devices else (),
                lease_ttl_seconds=ttls[part],
            )
            offer = TaskOffer(task=task, job=offered[at], secrets=secrets.get(job_id, {}))
            by_host[host_id].offers.append(offer)
    for d in drafts:
        d.settled = d.settled and not missed
        if len(choice.steps) > 1:
            places = {job_id: n for n, job_id in enumerate(choice.job_ids)}
            d.offers.sort(key=lambda offer: places.get(offer.task.key.job_id, -1))


def _read_devices(text: str) -> tuple[int, ...]:
    return () if text == "{}" else tuple(map(int, text[1:-1].split(",")))
