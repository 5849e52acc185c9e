"""The completer: drains whose every end is confirmed → requeue, success, failure or cancel. No job
ends or goes back to its queue in another way."""

import asyncio
import logging
from datetime import timedelta
from enum import Enum, auto

from holdfast.controller.loops.silhouette import Loop, Summary
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.sync.completions import about_drain, tell_reserved
from holdfast.core.endings.drain import Completion
from holdfast.core.placement.plan import JobPlacement
from holdfast.moves.dispatch import plan_restart
from holdfast.moves.values import DrainSnapshot

log = logging.getLogger("holdfast.loops")
LIMIT = 200
FORCE_SECONDS = 1.0  # between two looks for slow drains; a wake for a confirmed end comes earlier


class _Next(Enum):
    """The news of a drain's completion: nothing yet, its own next attempt started with it or to be
    started at once, or news for other jobs and loops."""

    NOTHING = auto()
    STARTED = auto()
    RETRY = auto()
    OTHERS = auto()


class DrainsLoop(Loop):
    """Completes drains, once each: the epoch guards the write."""

    name = "drains"
    topic = "drain"
    interval_seconds = 2.0

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._force_at = 0.0

    async def run_once(self) -> Summary:
        done, forced = await self._complete_all(), 0
        now = self._controller.clock()
        if now >= self._force_at:
            self._force_at = now + FORCE_SECONDS
            forced = await self._force()
            if forced:
                done += await self._complete_all()
        return {"completed": done, "forced": forced} if done or forced else {}

    async def _complete_all(self) -> int:
        """Complete what is ready; return how many drains."""
        done = 0
        while True:
            drains = await self._controller.store.drains.list_drains(LIMIT)
            ended = [await self._complete(drain) for drain in drains]
            completed = sum(end is not _Next.NOTHING for end in ended)
            done += completed
            if _Next.OTHERS in ended:
                self._controller.poke("admit", "events", "logs", "flow")
            elif completed:
                if _Next.RETRY in ended:
                    self._controller.poke("retries")
                self._controller.poke_soon("events", "logs")
            if len(drains) < LIMIT or not completed:
                return done

    async def _force(self) -> int:
        """End the grace of tasks that have not confirmed their end in time. After the completions,
        because a gang that goes straight on waits for those."""
        controller, forced = self._controller, 0
        settings = await controller.settings.current()
        wait = settings.number("drain_force_seconds")
        now = await controller.store.now()
        for job in await controller.store.drains.list_slow_drains(now - timedelta(seconds=wait)):
            # A job's own long grace is not cut short: it is forced when that, and the time of a
            # confirmation, is over.
            grace = settings.number("grace_seconds", job.queue, job.spec)
            patience = timedelta(seconds=max(wait, grace + wait / 2))
            if job.drain_since is None or now - job.drain_since < patience:
                continue
            tasks = await controller.store.drains.force_drain(job.id, job.epoch)
            if tasks:
                forced += tasks
                controller.metrics.force_drained.inc(tasks)
                text = "drain forced: %d tasks have not confirmed their end"
                log.warning(text, tasks, extra=about_drain(job))
                controller.poke_hosts_of(job.id)
        return forced

    async def _complete(self, drain: DrainSnapshot) -> _Next:
        controller, job = self._controller, drain.job
        try:
            settings = await controller.settings.current()
            found = controller.completions.plan(drain, settings)
            completion = await controller.completions.plan_start(drain, settings, found)
            if completion is None:
                return _Next.NOTHING
            at_once = controller.completions.take_turn(completion.decision, settings)
            news = await self._write(drain, completion, settings, at_once=at_once)
            if news is _Next.NOTHING:
                if at_once:
                    controller.completions.give_turn_back()
                return news
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # One job that cannot be decided must not hold the others up.
            log.exception("drain of job %s could not be decided", job.id, extra=about_drain(job))
            return _Next.NOTHING
        controller.completions.tell(drain, completion, at_once=at_once)
        return news

    async def _write(
        self, drain: DrainSnapshot, completion: Completion, settings: Settings, *, at_once: bool
    ) -> _Next:
        """Write a completion; with it the next attempt of a job that goes on at once, where that has
        room and no other job could want it."""
        controller, job = self._controller, drain.job
        drains = controller.store.drains
        placement = await self._place(drain, completion, settings) if at_once else None
        if placement is None:
            done = await drains.complete_drain(job.id, job.epoch, completion, at_once=at_once)
            return (_Next.RETRY if at_once else _Next.OTHERS) if done else _Next.NOTHING
        hosts = {task.host_id for task in placement.tasks}
        polls = controller.wakes.list_polls(sorted(hosts))
        ttl = job.spec.lease_ttl_seconds or settings.lease_ttl_seconds(
            job.queue, gang=job.tasks > 1
        )
        restarted = await drains.restart_drained(
            job.id, job.epoch, completion, placement, ttl, polls
        )
        if restarted is None:
            return _Next.NOTHING
        if not restarted.started:
            return _Next.RETRY
        controller.hand_out(hosts, polls, restarted.answers)
        await asyncio.sleep(0)  # the orders leave before anything is said of them
        if job.tasks > 1:
            tell_reserved([placement])
        return _Next.STARTED

    async def _place(
        self, drain: DrainSnapshot, completion: Completion, settings: Settings
    ) -> JobPlacement | None:
        """Return where the next attempt goes, None where that is for admission to find out."""
        hosts = await self._controller.completions.read_room(drain.job.id, settings)
        return plan_restart(drain.job, drain.tasks, completion, hosts) if hosts else None
