"""Hosts that evidence speaks against → quarantined with the evidence; hosts whose quarantine is
over → released."""

import logging

from holdfast.controller.loops.loop import Loop, Summary, prune_history
from holdfast.core.health.blame import WINDOW_SECONDS, LetBack, judge_hosts
from holdfast.core.states import HostEvent
from holdfast.errors import Conflict

log = logging.getLogger("holdfast.loops")


class HealthLoop(Loop):
    """Judges hosts by their checks and by the jobs that failed on them (BLAME-1…4)."""

    name = "health"
    topic = "health"
    interval_seconds = 30.0

    async def run_once(self) -> Summary:
        controller = self._controller
        settings = await controller.settings.current()
        if not settings.value("blame_hosts"):
            return {}
        store = controller.store
        moved = 0
        for verdict in judge_hosts(await store.health.read_standings(WINDOW_SECONDS)):
            try:
                if isinstance(verdict, LetBack):
                    event = HostEvent.RELEASE
                    await store.hosts.move_host(verdict.host_id, event, verdict.reason)
                    await store.health.close_aside(verdict.host_id)
                else:
                    # On record first: a quarantine without its record would have no end.
                    event = HostEvent.QUARANTINE
                    await store.health.open_aside(verdict)
                    await store.hosts.move_host(verdict.host_id, event, verdict.reason)
            except Conflict as error:
                log.info("host %s is not moved: %s", verdict.host_id, error.message)
                continue
            moved += 1
            log.warning("%s: %s", event, verdict.reason, extra={"host": verdict.host_id})
            controller.poke("admit", "events", f"host:{verdict.host_id}")
        return {"moved": moved} if moved else {}


class PruneHealthLoop(Loop):
    """Old readings of GPUs, and checks and ends of hosts older than `history_days` → deleted."""

    name = "prune_health"
    interval_seconds = 3600.0

    async def run_once(self) -> Summary:
        await self._controller.store.telemetry.prune_telemetry()
        return await prune_history(self._controller, self._prune)

    async def _prune(self, days: float) -> int:
        await self._controller.store.health.prune_health(days)
        return 0  # one statement deletes all of a table: there is no next batch
