"""Values that a replica remembers to ask the store less often. All of it can be lost."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.controller.runtime.background import Background
from holdfast.core.forecast.outlook import Outlook
from holdfast.core.placement.possible import HostShape
from holdfast.core.placement.types import Kin
from holdfast.core.records import QueueRecord
from holdfast.core.spec import JobSpec
from holdfast.errors import NotFound
from holdfast.moves.values import TaskOffer
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.sync.witness import Sought
from holdfast.wire.forecasts.values import JobForecast

MANY_JOBS = 10_000
_COUNTS_SECONDS = 2.0
_SIZES_SECONDS = 2.0
_OLD_SECONDS = 30.0
_PRICES_SECONDS = 60.0
_MAX_SPECS = 1024
_MAX_SAVED = 10_000
_SPANS_SECONDS = 30.0
_UNKNOWN_SECONDS = 2.0
_MAX_KIN = 10_000
_OUTLOOK_SECONDS = 3.0
_LINE_SECONDS = 15.0
Spans = Mapping[Kin, float]


class Sizes:
    """The hosts' whole sizes, against which each submission is checked. Sizes are read in the
    background, because a job that fitted a moment ago may wait like one that was submitted then."""

    def __init__(
        self, store: PostgresStore, clock: Callable[[], float], background: Background
    ) -> None:
        self._store = store
        self._clock = clock
        self._background = background
        self._known: Sequence[HostShape] = ()
        self._read_at = -math.inf

    async def current(self) -> Sequence[HostShape]:
        """Return the sizes, at most `_OLD_SECONDS` old. Sizes older than `_SIZES_SECONDS` are read
        again in the background."""
        age = self._clock() - self._read_at
        if age >= _OLD_SECONDS:
            return await self.refresh()
        if age >= _SIZES_SECONDS:
            self._background.read_behind(self, self.refresh)
        return self._known

    async def refresh(self) -> Sequence[HostShape]:
        """Read the sizes from the store, and return them."""
        self._known = await self._store.hosts.host_sizes()
        self._read_at = self._clock()
        return self._known


class QueueCounts:
    """How many jobs wait in each queue. A count of `MANY_JOBS` or more is remembered for
    `_COUNTS_SECONDS`, because each reader of it would read an entry of an index for every job."""

    def __init__(self, store: PostgresStore, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._known: dict[str, tuple[int, int]] = {}
        self._until = -math.inf

    async def list_queues(self) -> list[QueueRecord]:
        """Return every queue, by name, as it is now but for remembered counts."""
        if self._clock() < self._until:
            live = await self._store.settings.list_live_queues()
            return [self._add(queue) for queue in live]
        found = await self._store.settings.list_queues()
        if sum(queue.waiting + queue.queued for queue in found) >= MANY_JOBS:
            self._known = {queue.name: (queue.waiting, queue.queued) for queue in found}
            self._until = self._clock() + _COUNTS_SECONDS
        return found

    def _add(self, queue: QueueRecord) -> QueueRecord:
        waiting, queued = self._known.get(queue.name, (0, 0))
        return msgspec.structs.replace(queue, waiting=waiting, queued=queued)


class OfferPrices:
    """The prices that providers last named for their pools' offers. Each pool's plan counts with
    all of them, because the cheapest pool gets the job (DEMAND-2). asking: the last request for
    prices of each pool."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._asked_at: dict[str, float] = {}
        self.known: dict[str, Mapping[str, float]] = {}
        self.asking: dict[str, asyncio.Task[None]] = {}

    def ask_again(self, pool: str) -> bool:
        """Return whether it is time to ask for the prices of a pool, and count them as asked
        for."""
        now = self._clock()
        if now - self._asked_at.get(pool, -math.inf) < _PRICES_SECONDS:
            return False
        self._asked_at[pool] = now
        return True


class History:
    """The durations of jobs of a name, from the jobs on record (`PostgresAdmission.read_spans`)."""

    def __init__(self, store: PostgresStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._known: dict[Kin, tuple[float, float | None]] = {}

    async def find(self, kin: Iterable[Kin]) -> Spans:
        """Return the known durations in seconds, at most `_SPANS_SECONDS` old."""
        wanted, now = set(kin), self._clock()
        if len(self._known) + len(wanted) > _MAX_KIN:
            self._known.clear()
        known = self._known
        old = {k for k in wanted if k not in known or now - known[k][0] >= _keep(known[k][1])}
        if old:
            read = await self._store.admission.read_spans(old)
            known.update((k, (now, read.get(k))) for k in old)
        found = ((k, known[k][1]) for k in wanted)
        return {k: seconds for k, seconds in found if seconds is not None}


def _keep(seconds: float | None) -> float:
    """Return how long a duration is remembered: for a shorter time where no job of the name has
    ended yet."""
    return _UNKNOWN_SECONDS if seconds is None else _SPANS_SECONDS


class Forecasts:
    """The last outlook of the queues, and the forecasts that were made of it. Several that ask at once wait
    for the same read."""

    def __init__(self, store: PostgresStore, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._busy = asyncio.Lock()
        self._outlook: tuple[Outlook, datetime] | None = None
        self._read_at = -math.inf
        self._busy_line = asyncio.Lock()
        self._line: list[JobForecast] = []
        self._told_at = -math.inf

    async def find_outlook(
        self, read: Callable[[], Awaitable[Outlook]]
    ) -> tuple[Outlook, datetime]:
        """Return an outlook that is at most `_OUTLOOK_SECONDS` old, and the store's time at its read."""
        async with self._busy:
            if self._outlook is None or self._clock() - self._read_at >= _OUTLOOK_SECONDS:
                now = await self._store.now()
                self._outlook = await read(), now
                self._read_at = self._clock()
            return self._outlook

    async def find_line(
        self, foretell: Callable[[], Awaitable[list[JobForecast]]]
    ) -> list[JobForecast]:
        """Return the forecasts of the first queued jobs, at most `_LINE_SECONDS` old."""
        async with self._busy_line:
            if self._clock() - self._told_at >= _LINE_SECONDS:
                self._line = await foretell()
                self._told_at = self._clock()
            return self._line


class JobSpecs:
    """The queue and the spec of jobs, which never change. confirm: as `Doubts.confirm`."""

    def __init__(self, store: PostgresStore, confirm: Callable[[Sought], Awaitable[None]]) -> None:
        self._store = store
        self._confirm = confirm
        self._known: dict[str, tuple[str, JobSpec]] = {}

    async def find(self, job_id: str) -> tuple[str, JobSpec]:
        """Return the queue and the spec of a job. Raises NotFound, also for its hosts, which drop
        what they hold of such a job, so it is doubted (DOUBT-1)."""
        if (known := self._known.get(job_id)) is not None:
            return known
        try:
            job = await self._store.jobs.get_job(job_id)
        except NotFound:
            await self._confirm(Sought(jobs=frozenset({job_id})))
            raise
        return self.keep(job_id, job.queue, job.spec)

    def keep(self, job_id: str, queue: str, spec: JobSpec) -> tuple[str, JobSpec]:
        """Remember a job that was read anyway, because its logs will ask for it."""
        if len(self._known) >= _MAX_SPECS:
            self._known.clear()
        found = self._known[job_id] = queue, spec
        return found

    def keep_offered(self, offers: Sequence[TaskOffer]) -> None:
        """Keep the jobs of tasks that were just offered to a host, so that its next report needs no
        read of the store."""
        if len(self._known) + len(offers) > _MAX_SPECS:
            self._known.clear()
        for offer in offers:
            self._known[offer.task.key.job_id] = offer.job.queue, offer.job.spec


class SavedJobs:
    """Jobs whose checkpoints this replica received: their success leaves blobs to delete."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def add(self, job_id: str) -> None:
        """Note that a checkpoint of the job was received."""
        if len(self._ids) >= _MAX_SAVED:
            self._ids.clear()
        self._ids.add(job_id)

    def forget_jobs(self, job_ids: Collection[str]) -> bool:
        """Forget the noted jobs among `job_ids`. Returns False where none was noted."""
        found = self._ids.intersection(job_ids)
        self._ids -= found
        return bool(found)
