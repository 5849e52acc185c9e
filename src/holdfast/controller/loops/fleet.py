"""The fleet's loop: it runs each pool's cycle at its interval, and soon after a host calls."""

import asyncio
import logging

from holdfast.controller.fleet.by_pool import CyclesByPool
from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.runtime.context import Controller
from holdfast.core.fleet.records import PoolRecord
from holdfast.errors import Stale, Unavailable

log = logging.getLogger("holdfast.fleet")
LOOK_SECONDS = 5.0
DOUBT_SECONDS = 9.0
ASK_AGAIN_SECONDS = 10.0
LEAST_SECONDS = 0.1
GAP_SECONDS = 0.5
"""The time between two cycles of one pool that hints asked for."""
GOING_SECONDS = 10.0
"""The time between two listings of a deleted pool, because its machines must not be paid for until
a late poll."""


class FleetLoop(Loop):
    """Begins cycles and waits for none, so that no pool waits for another one's provider.

    ASK-1  A provider is asked at once for its machines where one of its hosts holds leases and hung
           up, or was not heard for `DOUBT_SECONDS`, and every `ASK_AGAIN_SECONDS` while that lasts.
           The work there is freed only once the provider says that the machine is gone; else the
           lease decides (LEASE-3).
    """

    name = "fleet"
    topic = "fleet"
    interval_seconds = LOOK_SECONDS

    def __init__(self, controller: Controller) -> None:
        super().__init__(controller)
        self._fleet = CyclesByPool(controller)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._due: dict[str, float] = {}
        self._begun: dict[str, float] = {}
        self._seen = -1
        self._doubted: dict[str, float] = {}

    async def run_once(self) -> Summary:
        controller = self._controller
        pools = {pool.name: pool for pool in await controller.store.fleet.list_pools()}
        hears = controller.leadership.hears_since is not None
        hinted, self._seen = self._seen, controller.wakes.topic("fleet").version
        now = controller.clock()
        doubted = await self._find_doubted(now) if pools and hears else set()
        waits = [LOOK_SECONDS]
        begun = []
        for name, pool in pools.items() if hears else ():
            task = self._running.get(name)
            if task is not None and not task.done():
                waits.append(GAP_SECONDS)
                continue
            if name in doubted:
                self._due[name], self._doubted[name] = now, now
            poll = _choose_poll(pool)
            # A pool's interval may have become shorter since.
            due = self._due[name] = min(self._due.get(name, now), self._begun.get(name, now) + poll)
            early = hinted != self._seen or self._fleet.of(name).rentals.unsure
            if early:
                due = min(due, self._begun.get(name, 0.0) + GAP_SECONDS)
            if due > now:
                waits.append(due - now)
                continue
            listing = self._due[name] <= now
            if listing:
                self._due[name] = now + poll
            waits.append(self._due[name] - now)
            self._begun[name] = now
            begun.append(name)
            work = self._cycle(pool, listing=listing)
            self._running[name] = asyncio.create_task(work, name=f"pool {name}")
        await self._fleet.keep(pools.keys() | self._running_names())
        self.interval_seconds = max(LEAST_SECONDS, min(waits))
        return {"cycles": begun} if begun else {}

    async def _find_doubted(self, now: float) -> set[str]:
        """Return the pools whose providers are asked for their machines at once (ASK-1)."""
        controller = self._controller
        hung_up, controller.doubted = set(controller.doubted.values()), {}
        silent = await controller.store.fleet.find_silent(DOUBT_SECONDS)
        asked = {n for n, at in self._doubted.items() if now - at < ASK_AGAIN_SECONDS}
        return hung_up | (set(silent.values()) - asked)

    async def stop(self) -> None:
        """Cancel the cycles and calls in progress."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running = {}
        await self._fleet.close()

    def _running_names(self) -> set[str]:
        return {name for name, task in self._running.items() if not task.done()}

    async def _cycle(self, pool: PoolRecord, *, listing: bool) -> None:
        controller = self._controller
        try:
            await self._fleet.of(pool.name).run(pool, listing=listing)
        except Unavailable as error:
            controller.outages.note_failure(error)
        except Stale as error:
            log.warning("pool %s: %s", pool.name, error.message)
        except Exception:
            controller.metrics.fleet.cycle_failures.labels(pool.name).inc()
            log.exception("the cycle of pool %s failed; the next one comes", pool.name)


def _choose_poll(pool: PoolRecord) -> float:
    """Return the seconds between a pool's cycle with a listing and its next cycle."""
    poll = pool.spec.poll_seconds
    return poll if pool.deleted_at is None else min(poll, GOING_SECONDS)
