"""The parts of one controller process, put together. None of them holds the truth: each can be lost
and read again."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from holdfast.blobs.interface import BlobStore
from holdfast.controller.runtime.auth import REVOKED, Guard
from holdfast.controller.runtime.background import Background
from holdfast.controller.runtime.bundles.kept import BundleBlobs
from holdfast.controller.runtime.bundles.place import BlobPlace
from holdfast.controller.runtime.bundles.room import RoomMeter
from holdfast.controller.runtime.calls.reported import ReportedCalls
from holdfast.controller.runtime.gangs.acts import Acting
from holdfast.controller.runtime.gangs.watch import GangWatch
from holdfast.controller.runtime.hosts.batch import SyncBatcher
from holdfast.controller.runtime.hosts.doubts import Doubts
from holdfast.controller.runtime.hosts.meetings import LinkMeetings
from holdfast.controller.runtime.hosts.orders import GangLayouts
from holdfast.controller.runtime.joins import Joins
from holdfast.controller.runtime.leading.allowance import Allowance
from holdfast.controller.runtime.leading.due_times import DueTimes
from holdfast.controller.runtime.leading.leadership import Leadership
from holdfast.controller.runtime.leading.looks import LeaderLooks
from holdfast.controller.runtime.leading.refusals import Refusals
from holdfast.controller.runtime.metrics import Metrics
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.remembered import (
    Forecasts,
    History,
    JobSpecs,
    OfferPrices,
    QueueCounts,
    SavedJobs,
    Sizes,
)
from holdfast.controller.runtime.senders.notices import NoticeSender
from holdfast.controller.runtime.senders.webhooks import Sender
from holdfast.controller.runtime.settings import SettingsCache
from holdfast.controller.runtime.telemetry import ReadingsWriter
from holdfast.controller.runtime.turns import Turns
from holdfast.controller.runtime.wakes import WakeBus
from holdfast.core.settings.resolve import Value
from holdfast.core.spec import MAX_TASKS
from holdfast.errors import Unavailable
from holdfast.moves.values import DrainBegun, DrainNews, HostSync, HostSynced
from holdfast.providers.interface import Provider
from holdfast.providers.locate import open_provider
from holdfast.store.postgres.store import PostgresStore

POKE_SOON_SECONDS = 0.005
SERVING_SECONDS = 60.0
OpenProvider = Callable[[str, Mapping[str, Any], str], Provider]
log = logging.getLogger("holdfast.controller")


class Controller:
    """The parts that every handler and loop works with. Each part is changed by its own methods
    alone.

    blobs: the store of checkpoints' bytes, the same for all replicas. clock: returns monotonic
    seconds. chance: returns a random number in [0, 1). open_provider: opens a provider of hosts, as
    `providers.locate` does.
    """

    def __init__(
        self,
        store: PostgresStore,
        environment: Mapping[str, Value] | None = None,
        clock: Callable[[], float] = time.monotonic,
        chance: Callable[[], float] = random.random,
        *,
        blobs: BlobStore,
        open_provider: OpenProvider = open_provider,
    ) -> None:
        self.store = store
        self.open_provider = open_provider
        self.url = ""  # how this server is reached, as far as it knows
        self.origins: tuple[str, ...] = ()  # at which the dashboard's pages are served
        self.blobs = blobs
        self.blob_place = BlobPlace(store, self.blobs, clock)
        self.bundles = BundleBlobs(self.blobs)
        self.room = RoomMeter(clock)
        self.clock = clock
        self.began_at = clock()
        self.chance = chance
        self.metrics = Metrics()
        self.outages = Outages(clock)
        self.doubts = Doubts(store, self.outages)
        self.background = Background(self.outages)
        self.settings = SettingsCache(store, dict(environment or {}), clock, self.background)
        self.sizes = Sizes(store, clock, self.background)
        self.queue_counts = QueueCounts(store, clock)
        self.prices = OfferPrices(clock)
        self.unheard: dict[str, str] = {}  # pool → why its provider could not be asked last
        self.doubted: dict[str, str] = {}  # host that hung up with work → its pool
        self.specs = JobSpecs(store, self.doubts.confirm)
        self.spans = History(store, clock)
        self.forecasts = Forecasts(store, clock)
        self.saved = SavedJobs()
        self.wakes = WakeBus()
        self.guard = Guard(store, self.doubts, clock, lambda: self.wakes.topic(REVOKED).version)
        self.webhooks = Sender()
        self.notices = NoticeSender()
        self.joins = Joins(store, clock)
        self.meetings = LinkMeetings()
        self.replica = ""  # the address at which other replicas reach this one
        self.replica_key = ""  # the cluster's own, once it was needed
        self.layouts = GangLayouts()
        self.calls = ReportedCalls(store, self.settings, self.metrics, self.outages, clock)
        self.telemetry = ReadingsWriter(store, clock, self.outages)
        acting = Acting(store, self.specs, self.settings, clock, self.poke, self.metrics.suspects)
        self.gangs = GangWatch(acting, clock, self.outages)
        self.refusals = Refusals()
        self.searches = Turns()
        self.leadership = Leadership(store, clock, self.outages)
        self.looks = LeaderLooks(store, self.settings, clock)
        self.dues = DueTimes(clock, self.wakes)
        self.allowance = Allowance()
        self.batcher = SyncBatcher(store, self.settings, self.metrics, self.outages, self.doubts)
        store.drains.watch_drains(self._tell_drains)

    def poke(self, *topics: str) -> None:
        """Wake the loops and readers of `topics`, because there may be work for them: at once on
        this replica, soon on the others."""
        for topic in topics:
            # The hint goes first: it comes back through `pump_hints` before the woken loop looks at the
            # version, so one poke is one turn of a loop.
            self.store.leadership.hint(topic)
            self.wakes.fire(topic)

    def doubt(self, host_id: str, pool: str) -> None:
        """Have the provider of a rented host asked now whether its machine still exists. Where the
        provider says that it is gone, its work is freed before its leases end (LEASE-3)."""
        self.doubted[host_id] = pool
        self.poke("fleet")

    def poke_soon(self, *topics: str, seconds: float = POKE_SOON_SECONDS) -> None:
        """Wake `topics` a moment later, because a host's order must leave before loops read the
        store."""
        asyncio.get_running_loop().call_later(seconds, self.poke, *topics)

    def hand_out(
        self, hosts: Collection[str], polls: Iterable[HostSync], answers: Sequence[HostSynced]
    ) -> None:
        """Answer the polls of `hosts` that wait here, and wake the other hosts (WAKE-2)."""
        incarnations = {poll.host_id: poll.incarnation for poll in polls}
        for answer in answers:
            self.wakes.answer_poll(answer, incarnations[answer.host_id])
        given = {answer.host_id for answer in answers}
        self.poke(*(f"host:{host_id}" for host_id in hosts if host_id not in given))

    def ask_host(self, host_id: str, *, reads: bool = False, sessions: bool = False) -> None:
        """Have a host read what is on record for it: `reads` of logs, or links of `sessions`. Its
        poll that waits here is answered without a sync, because a person waits."""
        asked = HostSynced(host_id=host_id, status="ok", reads=reads, sessions=sessions)
        polls = self.wakes.list_polls((host_id,))
        self.hand_out((host_id,), polls, [asked] if polls else [])

    def poke_hosts_of(self, *job_ids: str) -> None:
        """Wake the hosts that run tasks of these jobs. This runs in the background, because only
        the hosts' next sync depends on it."""
        self.background.start(self._poke_hosts_of(job_ids))

    async def _poke_hosts_of(self, job_ids: Collection[str]) -> None:
        found = await self.store.jobs.list_tasks_of(job_ids, first=MAX_TASKS)
        tasks = [task for of_job in found.values() for task in of_job]
        self.poke(
            *{f"host:{task.host_id}" for task in tasks if task.host_id and task.state.holds_lease}
        )

    def _tell_drains(self, news: Sequence[DrainNews]) -> None:
        """Log drains that began; then wake the hosts that have tasks to stop, and the completer."""
        hosts = self._log_drains(news)
        self.poke("drain", "events", *(f"host:{host_id}" for host_id in hosts))

    def _log_drains(self, news: Sequence[DrainNews]) -> list[str]:
        """Log the beginning of every drain and each task that it stops, one line each. Returns the
        hosts that have tasks to stop."""
        hosts: dict[str, None] = {}
        for item in news:
            about = {
                "job": item.job_id,
                "attempt": item.attempt,
                "epoch": item.epoch,
                "host": item.host_id,
            }
            if isinstance(item, DrainBegun):
                about |= {"rank": item.trigger_rank, "cause": str(item.cause)}
                about["moved"] = item.stopping
                log.info("drain started: %s", item.reason, extra=about)
                hosts.update(dict.fromkeys(item.hosts))
                self.metrics.drains_begun.labels(str(item.cause)).inc()
            else:
                text = "task preempted" if item.lost is None else f"task preempted: {item.lost}"
                log.info(text, extra={**about, "rank": item.rank})
        return list(hosts)

    async def pump_hints(self) -> None:
        """Turn the store's hints into wakes, for ever. A broken stream of hints is opened again;
        the loops' intervals cover the gap."""
        while True:
            try:
                async for topic in self.store.leadership.hints():
                    self.wakes.fire(topic)
            except Unavailable:
                pass
            except Exception:
                log.exception("the stream of hints broke; taken up again")
            await asyncio.sleep(1.0)

    async def say_serving(self) -> None:
        """Write where this replica serves, for hosts to learn, for ever."""
        while True:
            with suppress(Unavailable):
                await self.store.hosts.note_controller(self.replica)
            await asyncio.sleep(SERVING_SECONDS)

    async def close(self) -> None:
        """Answer the calls that wait and end the background work, each within its time
        (SERVE-1)."""
        self.wakes.close()
        await self.background.close()
        await self.notices.close()
        await self.batcher.close()
        await self.calls.close()
