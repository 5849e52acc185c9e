"""The completer: drains whose every end is confirmed → requeue, success, failure or cancel.

Only this loop ends a drain: it lists the drains that are ready, plans each completion, and writes
it. Jobs of one task that succeed have no drain, and end with their host's sync. The next attempt of
a job that was queued again is started by admission.
"""

import logging
from datetime import timedelta
from enum import Enum, auto

from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.core.causes import Cause
from holdfast.core.endings.classify import HOST_START, NEVER_STARTS
from holdfast.core.endings.decide import Decision
from holdfast.core.endings.drain import (
    Completion,
    do_others_serve,
    may_start_elsewhere,
    plan_completion,
)
from holdfast.core.records import JobRecord
from holdfast.core.states import JobEvent
from holdfast.moves.values import DrainSnapshot

log = logging.getLogger("holdfast.loops")
LIMIT = 200
FORCE_SECONDS = 1.0  # between two looks for slow drains; a wake for a confirmed end comes earlier


class _Next(Enum):
    """The work that a completed drain leaves for other parts: none yet, a retry that is queued
    again, or work for other jobs and loops."""

    NOTHING = auto()
    RETRY = auto()
    OTHERS = auto()


class DrainsLoop(Loop):
    """Completes drains, each once, because the epoch guards the write."""

    name = "drains"
    topic = "drain"
    by_look = True
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
        """Complete the drains that are ready; return how many were completed."""
        done, settings = 0, await self._controller.settings.recent()
        late = settings.number("sync_interval_seconds")
        while True:
            drains = await self._controller.store.drains.list_drains(LIMIT, late_seconds=late)
            ended = [await self._complete(drain) for drain in drains]
            completed = sum(end is not _Next.NOTHING for end in ended)
            done += completed
            if _Next.OTHERS in ended:
                self._controller.poke("admit", "events", "logs", "workflows")
            elif completed:
                self._controller.poke("retries")
                self._controller.poke_soon("events", "logs")
            if len(drains) < LIMIT or not completed:
                return done

    async def _force(self) -> int:
        """End the grace of tasks that have not confirmed their end in time. This runs after the
        completions, because a gang that restarts at once waits for those."""
        controller, forced = self._controller, 0
        settings = await controller.settings.current()
        wait = settings.number("drain_force_seconds")
        now = await controller.store.now()
        for job in await controller.store.drains.list_slow_drains(now - timedelta(seconds=wait)):
            # A job's own long grace, or its notice, is not cut short: it is forced when that, and
            # the time of a confirmation, is over.
            grace = settings.number("grace_seconds", job.queue, job.spec)
            grace = max(grace, job.drain_notice_seconds or 0.0)
            patience = timedelta(seconds=max(wait, grace + wait / 2))
            if job.drain_since is None or now - job.drain_since < patience:
                continue
            tasks = await controller.store.drains.force_drain(job.id, job.epoch)
            if tasks:
                forced += tasks
                controller.metrics.force_drained.inc(tasks)
                text = "drain forced: %d tasks have not confirmed their end"
                log.warning(text, tasks, extra=_about_drain(job))
                controller.poke_hosts_of(job.id)
        return forced

    async def _complete(self, drain: DrainSnapshot) -> _Next:
        controller, job = self._controller, drain.job
        try:
            settings = await controller.settings.current()
            completion = await self._plan(drain, settings)
            if completion is None:
                return _Next.NOTHING
            at_once = self._take_turn(completion.decision, settings)
            done = await controller.store.drains.complete_drain(
                job.id, job.epoch, completion, at_once=at_once
            )
            if not done:
                if at_once:
                    controller.allowance.spend(-1)  # the retry was not dispatched
                return _Next.NOTHING
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
            # One job that cannot be decided must not hold the others up.
            log.exception("drain of job %s could not be decided", job.id, extra=_about_drain(job))
            return _Next.NOTHING
        self._tell(drain, completion, at_once=at_once)
        return _Next.RETRY if at_once else _Next.OTHERS

    async def _plan(self, drain: DrainSnapshot, settings: Settings) -> Completion | None:
        """Return how the drain ends; None where a task still holds its lease. The plan reads more
        than the drain after a start that failed (the other hosts), and after a time limit or an
        error of the program (the checkpoints that the attempt left, and the other hosts where one
        of them may mend it: BUDGET-8, BUDGET-9)."""
        job, store, chance = drain.job, self._controller.store, self._controller.chance()
        policy = settings.policy(job.queue, job.spec)
        found = plan_completion(job, drain.tasks, policy, settings.rules, chance=chance)
        if found is None or not _needs_more(found.decision):
            return found
        known = dict[str, bool]()
        may_have_saved = found.decision.cause in _MAY_HAVE_SAVED
        if may_have_saved:
            checkpoints = await store.checkpoints.list_checkpoints(job.id)
            known["saved"] = any(each.attempt == job.attempts for each in checkpoints)
        if found.decision.avoid_host or not may_have_saved:
            hosts = await store.hosts.list_hosts()
            known["elsewhere"] = may_start_elsewhere(job, drain.tasks, hosts)
            known["others_serve"] = do_others_serve(job, drain.tasks, hosts)
        return plan_completion(job, drain.tasks, policy, settings.rules, chance=chance, **known)

    def _take_turn(self, decision: Decision, settings: Settings) -> bool:
        """Return whether the job's retry may be dispatched now: it is due at once, and the rate
        limit allows it (RATE-1). The retry is then counted against the limit."""
        if not _backs_off(decision) or decision.delay_seconds > 0:
            return False
        limit, allowance = settings.value("retry_rate_limit"), self._controller.allowance
        left = allowance.refill(None if limit is None else float(limit), self._controller.clock())
        if left is not None and left < 1:
            return False
        allowance.spend(1)
        return True

    def _tell(self, drain: DrainSnapshot, completion: Completion, *, at_once: bool) -> None:
        """Log and count a completed drain. at_once: True where the same transaction dispatched the
        job's retry."""
        job, decision, metrics = drain.job, completion.decision, self._controller.metrics
        log.info(
            "drain completed: attempt %d %s: %s",
            job.attempts,
            decision.outcome,
            decision.reason,
            extra={**_about_drain(job), "queue": job.queue},
        )
        self._count(job, decision)
        metrics.drain_seconds.observe(drain.seconds)
        if at_once:
            metrics.retry_dispatched.inc()
        elif _backs_off(decision):
            self._controller.dues.expect(decision.delay_seconds)

    def _count(self, job: JobRecord, decision: Decision) -> None:
        metrics, cause = self._controller.metrics, str(decision.cause or "")
        metrics.ended.labels(str(decision.outcome), cause).inc()
        metrics.drains_completed.labels(str(decision.outcome)).inc()
        if decision.retry == "scheduled":
            metrics.retry_scheduled.labels(cause).inc()
        elif decision.retry == "exhausted":
            metrics.retry_exhausted.labels(cause).inc()
        if decision.event is JobEvent.SUCCEED and job.was_retried:
            metrics.retry_succeeded.inc()


def _needs_more(decision: Decision) -> bool:
    """Return whether the decision needs facts beyond the drain."""
    return decision.rule in (NEVER_STARTS, HOST_START) or decision.cause in _MAY_HAVE_SAVED


_MAY_HAVE_SAVED = (Cause.TIME_LIMIT, Cause.PROGRAM_ERROR)


def _about_drain(job: JobRecord) -> dict[str, object]:
    """Return the extra fields of a log line about a job's drain."""
    return {"job": job.id, "attempt": job.attempts, "epoch": job.epoch}


def _backs_off(decision: Decision) -> bool:
    return decision.event is JobEvent.BACK_OFF and decision.held is None
