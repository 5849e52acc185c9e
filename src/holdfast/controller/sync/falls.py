"""Gangs that fell on one host, decided and started anew with the ends that the host tells (FALL-2).

The room for the next attempt is read while the ends are, and the write looks at what it takes of it
once more. A job that waits for its retry, or for which more than room decides, is the completer's.
"""

import asyncio
from collections.abc import Callable, Sequence

from holdfast.controller.loops.leadership import Leadership
from holdfast.controller.runtime.background import Background
from holdfast.controller.runtime.remembered import JobSpecs
from holdfast.controller.runtime.settings import Settings, SettingsCache
from holdfast.controller.sync.completions import Completions, needs_more, tell_reserved
from holdfast.core.placement.plan import Capacity
from holdfast.errors import NotFound, Stale
from holdfast.moves.dispatch import plan_restart
from holdfast.moves.values import DrainNews, DrainSnapshot, HostSync, HostSynced
from holdfast.store.port.drains import FallTaken, Restart
from holdfast.store.port.store import Store

ROOM_SECONDS = 0.02  # for which the write waits with its locks held
TOLD_SECONDS = 0.05  # after which the next attempt mostly runs: until then it has the cores
Told = Callable[[Sequence[DrainNews], bool], None]


class Falls:
    """Takes falls for one replica, while that leads. told: is told of the drains that began and
    ended, and whether the next attempt has its place."""

    def __init__(
        self,
        store: Store,
        settings: SettingsCache,
        specs: JobSpecs,
        completions: Completions,
        leadership: Leadership,
        background: Background,
        told: Told,
    ) -> None:
        self._store = store
        self._settings = settings
        self._specs = specs
        self._completions = completions
        self._leadership = leadership
        self._background = background
        self._told = told

    async def take(self, sync: HostSync) -> HostSynced | None:
        """Return the answer to a sync that tells of a fall; None where it is to be taken as any
        other."""
        job_id = find_fall(sync)
        if job_id is None or self._leadership.since is None:
            return None
        settings = await self._settings.current()
        try:
            queue, spec = await self._specs.find(job_id)
        except NotFound:
            return None
        again = settings.policy(queue, spec).retry.retry_delay <= 0
        if spec.tasks != len(sync.ended) or not again:
            return None
        fall = _OneFall(job_id, queue, settings, self._completions)
        self._background.start(fall.read_room())
        taken: FallTaken | None = None
        try:
            with self._store.leadership.fenced():  # the decision is a leader's (LEAD-3)
                taken = await self._store.drains.take_fall(sync, fall, rules=settings.rules)
        except Stale as error:
            if error.code != "lead_lost":
                raise
        finally:
            if taken is None:
                fall.undo()
        if taken is None:
            return None
        asyncio.get_running_loop().call_later(TOLD_SECONDS, self._tell, fall, taken)
        return taken.synced

    def _tell(self, fall: "_OneFall", taken: FallTaken) -> None:
        self._told(taken.news, taken.started)
        if fall.drain is not None and fall.restart is not None:
            self._completions.tell(fall.drain, fall.restart.completion, at_once=True)
            if taken.started:
                tell_reserved([fall.restart.placement])


def find_fall(sync: HostSync) -> str | None:
    """Return the gang whose ends are all that a sync tells beside what lives, and of which a rank
    failed by itself."""
    if sync.started or sync.claimed or sync.leaving:
        return None
    jobs = {(key.job_id, key.epoch) for key, _ in sync.ended}
    if len(jobs) != 1 or len(sync.ended) < 2 or any(facts.succeeded for _, facts in sync.ended):
        return None
    fell = any(not facts.stopped for _, facts in sync.ended)
    return sync.ended[0][0].job_id if fell else None


class _OneFall:
    """A `Fall` of the store's."""

    def __init__(
        self, job_id: str, queue: str, settings: Settings, completions: Completions
    ) -> None:
        self.job_id = job_id
        self.queue = queue
        self.drain: DrainSnapshot | None = None
        self.restart: Restart | None = None
        self._settings = settings
        self._completions = completions
        self._hosts: tuple[Capacity, ...] | None = None
        self._read = asyncio.Event()
        self._has_turn = False

    async def read_room(self) -> None:
        """Read the room for the next attempt."""
        try:
            self._hosts = await self._completions.read_room(self.job_id, self._settings)
        finally:
            self._read.set()

    async def decide(self, drain: DrainSnapshot) -> Restart | None:
        """As `Fall` has it. May be called again, because a transaction may be."""
        completion = self._completions.plan(drain, self._settings)
        if completion is None or needs_more(completion):
            return None
        self._has_turn = self._has_turn or self._completions.take_turn(
            completion.decision, self._settings
        )
        if not self._has_turn:
            return None
        try:
            async with asyncio.timeout(ROOM_SECONDS):
                await self._read.wait()
        except TimeoutError:
            return None
        hosts = self._hosts
        placement = plan_restart(drain.job, drain.tasks, completion, hosts) if hosts else None
        if placement is None:
            return None
        job = drain.job
        ttl = job.spec.lease_ttl_seconds or self._settings.lease_ttl_seconds(job.queue, gang=True)
        self.drain = drain
        self.restart = Restart(completion=completion, placement=placement, ttl_seconds=ttl)
        return self.restart

    def undo(self) -> None:
        """Give the retry's turn back, because the fall was not taken."""
        if self._has_turn:
            self._completions.give_turn_back()
