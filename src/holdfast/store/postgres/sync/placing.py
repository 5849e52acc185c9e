"""Submissions that place their job on a host that waits with room."""

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any

import msgspec

from holdfast.core.host_faults import find_runtime_word
from holdfast.core.ids import TaskKey
from holdfast.core.placement.takes import TakeTerms, count_worth, group_alike, plan_takes
from holdfast.core.placement.types import Candidate
from holdfast.core.records import JobRecord
from holdfast.core.spec import JobSpec
from holdfast.moves import requests
from holdfast.moves.reports import Draft
from holdfast.moves.values import (
    Foretell,
    HostSync,
    HostSynced,
    NewJob,
    OfferedTask,
    Submitted,
    TaskOffer,
    TellOffers,
)
from holdfast.store.postgres.admission import as_capacity
from holdfast.store.postgres.connection.line import Found
from holdfast.store.postgres.connection.session import Session, Step, Tx, to_json
from holdfast.store.postgres.jobs import ask_insert, make_row
from holdfast.store.postgres.sync.choices import ask_takes, choose_jobs, give_taken
from holdfast.store.postgres.sync.kinds import TakableKinds, make_offered

MAX_ROOMS = 1024


class Placing:
    """Submissions that place their job on a host that waits with room.

    The plan is made on the room that was found the last time, and written by one statement that
    compares it under the host's lock; where it differs, or other jobs are queued, nothing is written,
    and the plan is made of what is read then. So a host that is found as it was before costs one
    round trip, and one that is not, two more. Where the last guess for a host was right, the next one
    is foretold, because a host that is foretold what does not come makes a call for nothing.
    """

    def __init__(self, session: Session, kinds: TakableKinds) -> None:
        self._session = session
        self._kinds = kinds
        self._rooms: dict[str, dict[str, Any]] = {}  # as read_room had them, by host
        self._guessed: set[str] = set()  # of these hosts, those whose last guess was right

    async def submit_to_host(
        self,
        job: NewJob,
        taker: HostSync,
        terms: TakeTerms,
        tell: TellOffers | None,
        foretell: Foretell | None,
        now: datetime | None,
    ) -> tuple[Submitted, HostSynced] | None:
        """`LeaseStore.submit_to_host`."""
        room = self._rooms.pop(taker.host_id, None)
        plain = not (job.spec.after or job.spec.supervised or job.origin or job.spec.start_at)
        if room is not None and plain and room["incarnation"] == taker.incarnation:
            known = taker.host_id in self._guessed
            self._guessed.discard(taker.host_id)
            guess = _Guess(job, taker, terms, room, foretell if known else None, now)
            found = await self._session.single(lambda tx: _place(tx, guess, tell))
            if found is not None:
                self._rooms[taker.host_id] = room
                self._guessed.add(taker.host_id)
                return found
        row = make_row(job, requests.hash_spec(job.spec))
        found = await self._session.transact(
            lambda tx: self._submit(tx, job, row, taker, terms, now), keep_plans=True
        )
        if found is not None and found[1].offers and tell is not None:
            await tell(found[1])
        return found

    async def _submit(
        self,
        tx: Tx,
        job: NewJob,
        row: Mapping[str, Any],
        taker: HostSync,
        terms: TakeTerms,
        now: datetime | None,
    ) -> tuple[Submitted, HostSynced] | None:
        """Write a job, and let the host take what it may. Locks in the one order: queues, hosts,
        jobs."""
        limit = count_worth(1)
        new = {**ask_insert([job], now), "rows": to_json([row]), "limited_too": False}
        written, _, *found = await tx.many(
            ("insert_jobs", new),
            ("lock_hosts", {"ids": [taker.host_id]}),
            *ask_takes([taker.host_id], terms, limit, now),
        )
        if not written:
            return None
        draft = Draft(taker, "ok")
        rooms = [room for room in found[1] if room["incarnation"] == taker.incarnation]
        draft.name = rooms[0]["name"] if rooms else ""
        queued = await self._kinds.group(tx, found[2])
        cut = queued.count() >= limit
        choice = choose_jobs([draft], terms, found[0], rooms, queued, cut=cut)
        if choice.steps:
            give_taken([draft], choice, await tx.last(*choice.steps))
        if [offer.task.key.job_id for offer in draft.offers] == [job.id] and queued.count() == 1:
            if len(self._rooms) >= MAX_ROOMS:
                self._rooms.clear()
                self._guessed.clear()
            self._rooms[taker.host_id] = rooms[0]
        submitted = msgspec.convert(written[0], JobRecord)
        return Submitted(job=submitted, created=True), draft.answer()


class _Guess:
    """The place of a new job in the room that its host had the last time."""

    def __init__(
        self,
        job: NewJob,
        taker: HostSync,
        terms: TakeTerms,
        room: dict[str, Any],
        foretell: Foretell | None,
        now: datetime | None,
    ) -> None:
        self.host_id = taker.host_id
        self._job, self._taker, self._terms, self._room, self._now = job, taker, terms, room, now
        self._ask: dict[str, Any] = {}
        self._settled = False
        self._foretell = foretell
        self._runs = False
        self._decide: Callable[[bool], None] | None = None

    def plan(self) -> Step | None:
        """Return the statement that writes the job and its place; None where it has none. The answer
        is made while the server works."""
        job, room = self._job, self._room
        row = make_row(job, requests.hash_spec(job.spec))
        takes = plan_takes(
            group_alike([_make_candidate(job)]), [as_capacity(room)], self._terms, (), cut=False
        )
        if not takes.taken:
            return None
        self._settled = bool(takes.settled) and self._terms.whole
        self._ask = {
            **_ask_place(row, self.host_id, room),
            "devices": list(takes.taken[0].devices[0]),
            "ttl": job.spec.lease_ttl_seconds or self._terms.ttls[job.queue],
            "revision": self._terms.revision,
            "now": self._now,
        }
        self._runs = True
        asyncio.get_running_loop().call_soon(self._make_answer)
        return "place_job", self._ask

    def _make_answer(self) -> None:
        """Make the answer, and foretell it, while the server works."""
        answer = self.answer
        if self._runs and self._foretell is not None:
            self._decide = self._foretell(answer)

    def end(self, *, written: bool) -> bool:
        """Say whether the plan is on record. True where the host has heard of it by that."""
        self._runs = False
        decide, self._decide = self._decide, None
        if decide is not None:
            decide(written)
        return decide is not None

    @cached_property
    def answer(self) -> HostSynced:
        """The host's answer, if the plan is written."""
        ask = self._ask
        draft = Draft(self._taker, "ok")
        draft.name, draft.settled = self._room["name"], self._settled
        task = OfferedTask(
            key=TaskKey(self._job.id, 0, 1),
            attempt=1,
            host_id=self.host_id,
            devices=tuple(ask["devices"]),
            lease_ttl_seconds=ask["ttl"],
        )
        secrets = requests.list_secrets(self._job)
        draft.offers.append(TaskOffer(task=task, job=make_offered(ask), secrets=secrets))
        return draft.answer()


async def _place(
    tx: Tx, guess: _Guess, tell: TellOffers | None
) -> tuple[Submitted, HostSynced] | None:
    """Write a job and its place in a room that is guessed; nothing where there is another. The
    statement may be sent again after a lost connection, because a repeated id changes nothing."""
    placed: list[Found] = []
    try:
        _, *placed = await tx.send(("begin_placing", {"host_id": guess.host_id}), guess.plan)
    finally:
        told = guess.end(written=bool(placed and placed[0].count))
    if not placed or not placed[0].count:
        return None
    if told:
        await asyncio.sleep(0)  # the order leaves first
    elif tell is not None:
        await tell(guess.answer)
    (written,) = placed[0].rows
    return Submitted(job=msgspec.convert(written, JobRecord), created=True), guess.answer


def _ask_place(row: Mapping[str, Any], host_id: str, room: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of `place_job` that tell of a job and its host."""
    return {
        **row,
        "labels": to_json(row["labels"]),
        "spec": to_json(row["spec"]),
        "secrets": to_json(row["secrets"]) if row["secrets"] else None,
        "host_id": host_id,
        "room": to_json(room),
        "submitted": requests.SUBMITTED,
    }


async def warm_up(tx: Tx) -> None:
    """Run what places a job, for no queue and no host, so that a connection has planned it."""
    job, terms = (
        NewJob(id="", spec=JobSpec(argv=("true",)), queue=""),
        TakeTerms(revision=0, ttls={}, whole=False),
    )
    row = make_row(job, requests.hash_spec(job.spec))
    place = {**_ask_place(row, "", {}), "devices": [], "ttl": 1.0, "revision": 0, "now": None}
    new = {**ask_insert([job], None), "rows": to_json([row]), "limited_too": False}
    await tx.many(
        ("begin_placing", {"host_id": ""}),
        ("place_job", place),
        ("insert_jobs", new),
        ("lock_hosts", {"ids": [""]}),
        *ask_takes([""], terms, count_worth(1), None),
    )


def _make_candidate(job: NewJob) -> Candidate:
    """Return a new job as read_takable would."""
    spec = job.spec
    return Candidate(
        job_id=job.id,
        epoch=0,
        queue=job.queue,
        project=spec.project,
        priority=spec.priority,
        tasks=spec.tasks,
        gpus=spec.gpus,
        cpu_slots=spec.cpu_slots,
        memory_bytes=spec.memory_bytes,
        lease_ttl_seconds=spec.lease_ttl_seconds,
        host_labels=spec.host_labels,
        runtime=find_runtime_word(spec.image, spec.runtime),
        supervised=spec.supervised,
    )
