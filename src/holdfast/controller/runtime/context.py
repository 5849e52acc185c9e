"""The pieces of one controller process, put together. No truth lives here: everything in it can be
lost and read again."""

from __future__ import annotations

import asyncio
import heapq
import logging
import math
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.blobs.interface import BlobStore
from holdfast.blobs.memory import MemoryBlobs
from holdfast.controller.runtime.auth import Guard
from holdfast.controller.runtime.metrics import Metrics
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.controller.runtime.wakes import WakeBus
from holdfast.controller.runtime.webhook_sender import Sender
from holdfast.controller.sync.batch import SyncBatcher
from holdfast.controller.sync.orders import Layouts
from holdfast.core.lease import ClockReading, find_step
from holdfast.core.placement.plan import Size
from holdfast.core.records import JobRecord
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import JobSpec
from holdfast.errors import HoldfastError, Unavailable
from holdfast.moves.values import DrainBegun, DrainNews
from holdfast.store.port.store import Store

log = logging.getLogger("holdfast.controller")
MAX_LANES = 1024
_SIZES_SECONDS = 2.0
_BACKGROUND_SECONDS = 0.2  # for work that was cancelled and should be gone at once
LOOK_SECONDS = 1.0  # between two looks at the waiting jobs when nothing says that there is work


class Sizes:
    """The hosts' whole sizes, a moment old at most: a submission is checked against them, and must
    be quick."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store = store
        self._clock = clock
        self._known: Sequence[Size] = ()
        self._read_at = -math.inf

    async def current(self) -> Sequence[Size]:
        """The sizes, read again where they are older than a moment."""
        if self._clock() - self._read_at >= _SIZES_SECONDS:
            return await self.refresh()
        return self._known

    async def refresh(self) -> Sequence[Size]:
        """The sizes of now."""
        self._known = await self._store.host_sizes()
        self._read_at = self._clock()
        return self._known


class Controller:
    """What every handler and loop works with.

    refusals: why the last admission passed jobs over, for `why`. leading_since: the store's time
    since which this replica has led without an outage; None while another leads. dues: a heap of
    when, by `clock`, the retries that this replica decided on are due; hints for the loop that
    dispatches, which looks every `LOOK_SECONDS` in any case.
    blobs: where checkpoints are; the same for all replicas. checkpointed: jobs this replica took
    checkpoints of: their success is worth a look at once.
    """

    def __init__(
        self,
        store: Store,
        environment: Mapping[str, Value] | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        blobs: BlobStore | None = None,
    ) -> None:
        self.store = store
        self.blobs = blobs if blobs is not None else MemoryBlobs()
        self.checkpointed: set[str] = set()
        self.clock = clock
        self.chance = chance
        self.environment: Mapping[str, Value] = dict(environment or {})
        self.metrics = Metrics()
        self.settings = SettingsCache(store, self.environment, clock)
        self.sizes = Sizes(store, clock)
        self.wakes = WakeBus()
        self.guard = Guard(store, clock)
        self.outages = Outages(clock)
        self.webhooks = Sender()
        self.layouts = Layouts()
        self.batcher = SyncBatcher(store, self.metrics, self.outages)
        self.refusals: Mapping[str, str] = {}
        self.leading_since: datetime | None = None
        self._reading: ClockReading | None = None
        self.dues: list[float] = []
        self.joined: dict[tuple[bytes, str], tuple[float, str, str]] = {}
        self.join_lock = asyncio.Lock()
        self._lanes: dict[str, tuple[str, JobSpec]] = {}
        store.watch_drains(self._tell_drains)
        self._background: set[asyncio.Task[None]] = set()

    def poke(self, *topics: str) -> None:
        """Say that `topics` may have work: at once on this replica, soon on the others."""
        for topic in topics:
            # The hint first: it comes back through `pump_hints` before whoever the wake resumes
            # looks at the version, so one poke is one turn of a loop.
            self.store.hint(topic)
            self.wakes.fire(topic)

    def expect_retry(self, delay_seconds: float) -> None:
        """A retry was decided: wake who dispatches it where it is due before that one would look by
        itself."""
        if delay_seconds < LOOK_SECONDS:
            heapq.heappush(self.dues, self.clock() + delay_seconds)
            self.wakes.fire("due")

    async def read_time(self) -> datetime:
        """The store's time, for whoever judges silence by it: where its clock was set, the count
        begins anew (LEASE-5)."""
        before = self.clock()
        at = await self.store.now()
        self.outages.note_success()  # after a long one nobody may be judged by the old count (LEASE-4)
        last, this = self._reading, ClockReading(at=at, before=before, after=self.clock())
        step = 0.0 if last is None else find_step(last, this)
        if step < 0.0 or last is None:  # nobody knows what was before the first
            await self.store.settle_clock()
        if step:
            log.error(
                "the database's clock was set %s by %.1f s; nobody is taken for silent before a "
                "whole lease has passed",
                "forward" if step > 0.0 else "back",
                abs(step),
            )
            if self.leading_since is not None:
                self.leading_since = at
        self._reading = this
        return at

    def _tell_drains(self, news: Sequence[DrainNews]) -> None:
        """Every drain's beginning and each task that goes with it: one line each, under one job id
        and epoch. And whoever has
        work now is woken: the hosts that have to stop something, and the completer."""
        hosts: dict[str, None] = {}
        for item in news:
            about = {
                "job": item.job_id,
                "attempt": item.attempt,
                "epoch": item.epoch,
                "host": item.host_id,
            }
            if isinstance(item, DrainBegun):
                log.info(
                    "drain started: %s",
                    item.reason,
                    extra={
                        **about,
                        "rank": item.trigger_rank,
                        "cause": str(item.cause),
                        "moved": item.stopping,
                    },
                )
                hosts.update(dict.fromkeys(item.hosts))
            else:
                text = "task preempted" if item.lost is None else f"task preempted: {item.lost}"
                log.info(text, extra={**about, "rank": item.rank})
        self.poke("drain", "events", *(f"host:{host_id}" for host_id in hosts))

    def poke_hosts_of(self, job_id: str) -> None:
        """Wake the hosts that run tasks of a job, in the background: only their next sync depends
        on it."""
        self.start(self._poke_hosts_of(job_id))

    async def _poke_hosts_of(self, job_id: str) -> None:
        tasks = await self.store.list_tasks(job_id)
        self.poke(
            *{f"host:{task.host_id}" for task in tasks if task.host_id and task.state.holds_lease}
        )

    async def find_lane(self, job_id: str) -> tuple[str, JobSpec]:
        """The queue and the spec of a job, which never change, so they are remembered. Raises
        NotFound."""
        found = self._lanes.get(job_id)
        if found is None:
            job = await self.store.get_job(job_id)
            self.keep_lane(job)
            found = job.queue, job.spec
        return found

    def keep_lane(self, job: JobRecord) -> None:
        """Remember the lane of a job that is at hand: its logs will ask for it."""
        if len(self._lanes) >= MAX_LANES:
            self._lanes.clear()
        self._lanes[job.id] = (job.queue, job.spec)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run something nobody waits for; its failure is logged, its task kept alive until it
        ends."""

        async def guarded() -> None:
            try:
                await work
            except Unavailable as error:
                self.outages.note_failure(error)
            except HoldfastError as error:
                log.debug("a background step found nothing to do: %s", error)
            except Exception:
                log.exception("a background step failed")

        task = asyncio.get_running_loop().create_task(guarded())
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def pump_hints(self) -> None:
        """Turn the store's hints into wakes, for ever. A broken stream is taken up again; polling
        covers the gap."""
        while True:
            try:
                async for topic in self.store.hints():
                    self.wakes.fire(topic)
            except Unavailable:
                pass
            except Exception:
                log.exception("the stream of hints broke; taken up again")
            await asyncio.sleep(1.0)

    async def close(self) -> None:
        """Answer what waits and end the background work. Waits for none of it for ever
        (SERVE-1)."""
        self.wakes.close()
        if self._background:
            for task in self._background:
                task.cancel()
            await asyncio.wait(self._background, timeout=_BACKGROUND_SECONDS)
        await self.batcher.close()
