"""Decides which executors are asked to leave, because others want their slots
(`core.calls.executor_exit`)."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.controller.runtime.background import Background
from holdfast.core.calls.executor_exit import (
    YIELD_GAP_SECONDS,
    Queues,
    WantedSlot,
    find_job_for_room,
    find_waiting_jobs,
    list_claims,
    list_roomy,
    yields_when_busy,
    yields_when_idle,
)
from holdfast.core.calls.executors import is_ahead, is_lent
from holdfast.core.host_faults import find_runtime_word
from holdfast.core.placement.candidates import as_candidate
from holdfast.core.placement.types import Candidate
from holdfast.core.records import HostRecord, JobRecord
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.moves.values import JobFilter
from holdfast.store.postgres.store import PostgresStore

FRESH_SECONDS = 2.0
MAX_READ = 1000
JOBS_READ = 16
"""The number of next jobs that are read of each queue."""
LIMITED_READ = 200
GIVEN_SECONDS = 10.0
"""The time for which no more executors leave for the same job, because the job takes the freed room
meanwhile."""


class _Given(NamedTuple):
    """Room that executors of a host give to a job. left: how many more of them must leave."""

    at: float
    host_id: str
    left: int


class WantedSlots:
    """The executors and jobs that wait for a place, as this replica last read them, at most
    `FRESH_SECONDS` ago."""

    def __init__(self, store: PostgresStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._read_at = float("-inf")
        self._yielded_at = float("-inf")
        self._wanted: list[WantedSlot] = []
        self._running: Counter[str] = Counter()
        self._jobs_at = float("-inf")
        self._queues = Queues(candidates=(), hosts=(), headroom={}, quotas={})
        self._jobs: list[Candidate] = []
        self._given: dict[str, _Given] = {}
        self._lent_at = float("-inf")
        self._surplus: frozenset[str] = frozenset()

    def refresh_behind(self, background: Background, *, jobs: bool) -> None:
        """Read again, in the background and a moment later, the parts that are too old. The caller
        is not delayed, because it sends an end or a batch first. jobs: True to read the jobs that
        wait for room, too."""
        old = self._clock() - self._read_at >= FRESH_SECONDS
        if old or (jobs and not self.knows_jobs):
            background.read_behind(self, self._refresh_all if jobs else self.refresh)

    async def _refresh_all(self) -> None:
        await self.refresh()
        await self.refresh_jobs()

    async def refresh(self) -> None:
        """Read the waiting executors again, where the last read is too old."""
        if self._clock() - self._read_at < FRESH_SECONDS:
            return
        self._read_at = self._clock()
        only = JobFilter(states=(JobState.QUEUED,), executors="only", limit=MAX_READ)
        queued = await self._store.jobs.list_jobs(only)
        ages = await self._read_ages() if any(is_ahead(job.spec) for job in queued) else {}
        # An executor submitted ahead of calls is needed by now, where calls of its family wait.
        queued = [job for job in queued if not is_ahead(job.spec) or job.spec.executor in ages]
        self._wanted = []
        if not queued:
            return
        running = JobFilter(states=(JobState.RUNNING,), executors="only", limit=MAX_READ)
        found = await self._store.jobs.list_jobs(running)
        self._running = Counter(job.spec.executor for job in found)
        now = await self._store.now()
        for job in queued:
            waited = (now - (job.queued_at or now)).total_seconds()
            if is_ahead(job.spec):
                waited = min(waited, ages[job.spec.executor])
            self._wanted.append(_as_wanted(job, waited, self._running))

    async def _read_ages(self) -> dict[str, float]:
        """Return the age of the oldest waiting call of each family, in seconds."""
        ages: dict[str, float] = {}
        for feed in await self._store.calls.read_feeds():
            name = feed.family.name
            ages[name] = max(ages.get(name, 0.0), feed.head_age_seconds)
        return ages

    async def refresh_lent(self) -> None:
        """Read again which executors run on slots lent by waiting executors, where the last read is
        too old."""
        if self._clock() - self._lent_at < FRESH_SECONDS:
            return
        self._lent_at = self._clock()
        waiting = sum(bool(call.waits_for) for call in await self._store.calls.read_busy())
        running = JobFilter(states=(JobState.RUNNING,), executors="only", limit=MAX_READ)
        lent = [job.id for job in await self._store.jobs.list_jobs(running) if is_lent(job.spec)]
        self._surplus = frozenset(sorted(lent)[waiting:])

    def is_surplus(self, job_id: str) -> bool:
        """Return whether the executor runs on a lent slot whose lender wants it back."""
        return job_id in self._surplus

    def gives_way(self, spec: JobSpec, host: HostRecord, *, idle: bool) -> bool:
        """Return whether this executor has to leave, so that another family gets its slot."""
        if not self._wanted:
            return False
        labels = host.able_labels
        claims = list_claims(self._wanted, spec.executor, spec.gpus, labels, host.queues)
        if idle:
            return yields_when_idle(claims)
        if self._clock() - self._yielded_at < YIELD_GAP_SECONDS:
            return False
        if yields_when_busy(claims, self._running[spec.executor]):
            self._yielded_at = self._clock()
            return True
        return False

    @property
    def knows_jobs(self) -> bool:
        """Return whether the jobs that wait for room were read recently."""
        return self._clock() - self._jobs_at < FRESH_SECONDS

    async def refresh_jobs(self) -> None:
        """Read the jobs that wait for room again, where the last read is too old."""
        if self.knows_jobs:
            return
        self._jobs_at = now = self._clock()
        found = await self._store.admission.read_admission(JOBS_READ)
        limited = found.quotas or any(left <= 0 for left in found.headroom.values())
        beyond = await self._read_limited(found.candidates) if limited else []
        self._queues = Queues(
            candidates=(*found.candidates, *beyond),
            hosts=found.hosts,
            headroom=found.headroom,
            quotas=found.quotas,
            roomy=list_roomy(found.hosts),
        )
        self._jobs = find_waiting_jobs(self._queues)
        fresh = {job: given for job, given in self._given.items() if now - given.at < GIVEN_SECONDS}
        self._given = fresh

    async def _read_limited(self, known: Sequence[Candidate]) -> list[Candidate]:
        """Return the queued jobs that a limit keeps out of admission's view (LEAVE-4)."""
        only = JobFilter(states=(JobState.QUEUED,), executors="hide", limit=LIMITED_READ)
        queued = await self._store.jobs.list_jobs(only)
        there = {job.job_id for job in known}
        paused = {q.name for q in await self._store.settings.list_live_queues() if q.paused_at}
        left = [job for job in queued if job.id not in there and job.queue not in paused]
        return [
            msgspec.structs.replace(
                as_candidate(job),
                host_labels=job.spec.host_labels,
                runtime=find_runtime_word(job.spec.image, job.spec.runtime),
            )
            for job in reversed(left)
        ]

    def yields_to_job(self, spec: JobSpec, host_id: str, beside: Sequence[JobSpec] = ()) -> bool:
        """Return whether an idle executor gives its room to a waiting job. beside: the other idle
        executors of its host, whose room the job may need, too."""
        waiting = [job for job in self._jobs if self._wants_room(job.job_id, host_id)]
        found = find_job_for_room(waiting, self._queues, host_id, spec, beside) if waiting else None
        if found is None:
            return False
        job_id, count = found
        before = self._given.get(job_id)
        left = count if before is None else before.left
        self._given[job_id] = _Given(self._clock(), host_id, left - 1)
        return True

    def _wants_room(self, job_id: str, host_id: str) -> bool:
        given = self._given.get(job_id)
        return given is None or (given.host_id == host_id and given.left > 0)


def _as_wanted(job: JobRecord, waited_seconds: float, running: Counter[str]) -> WantedSlot:
    return WantedSlot(
        family=job.spec.executor,
        host_labels=job.spec.host_labels,
        queue=job.queue,
        gpus=job.gpus,
        waited_seconds=waited_seconds,
        alone=not running[job.spec.executor],
    )
