"""Admission: queued jobs and free room → reservations. The one way up."""

from __future__ import annotations

from holdfast.controller.context import Controller
from holdfast.controller.loops.silhouette import Summary
from holdfast.controller.settings_cache import Settings
from holdfast.core.placement import AdmissionPlan, Candidate, plan_admission

LIMIT = 500
MAX_ROUNDS = 50


class AdmitLoop:
    """Repeats while it makes progress: a full queue does not wait for the next tick."""

    name = "admit"
    topic: str | None = "admit"
    interval_seconds = 2.0

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def run_once(self) -> Summary:
        started = 0
        for _ in range(MAX_ROUNDS):
            applied, more = await self._run_round()
            started += applied
            if not applied or not more:
                break
        return {"started": started} if started else {}

    async def _run_round(self) -> tuple[int, bool]:
        """How many jobs were started, and whether there may be more: what is queued from now on wakes the loop by itself."""
        controller = self._controller
        snapshot = await controller.store.read_admission(LIMIT)
        if not snapshot.candidates:
            controller.refusals = {}
            return 0, False
        plan = plan_admission(snapshot.candidates, snapshot.hosts, snapshot.headroom, snapshot.quotas)
        controller.refusals = plan.refusals
        if not plan.placements:
            return 0, False
        settings = await controller.settings.current()
        if settings.rev < snapshot.settings_rev:
            settings = await controller.settings.refresh()
        applied = set(
            await controller.store.reserve(plan.placements, _choose_ttls(snapshot.candidates, plan, settings))
        )
        hosts = {task.host_id for p in plan.placements if p.job_id in applied for task in p.tasks}
        controller.poke(*(f"host:{host_id}" for host_id in hosts))
        if applied:
            controller.poke("events")
        return len(applied), len(applied) < len(snapshot.candidates) or len(applied) >= LIMIT


def _choose_ttls(candidates: tuple[Candidate, ...], plan: AdmissionPlan, settings: Settings) -> dict[str, float]:
    placed = {p.job_id for p in plan.placements}
    of_queue: dict[str, float] = {}
    ttls: dict[str, float] = {}
    for job in candidates:
        if job.job_id not in placed:
            continue
        own = job.lease_ttl_seconds
        if own is None and job.queue not in of_queue:
            of_queue[job.queue] = settings.number("lease_ttl_seconds", job.queue)
        ttls[job.job_id] = own if own is not None else of_queue[job.queue]
    return ttls
