"""What becomes of drains that are over: their decisions, the turns of retries, and what is told of
them."""

import logging
from collections.abc import Callable, Sequence

from holdfast.controller.loops.allowance import Allowance
from holdfast.controller.loops.due_times import DueTimes
from holdfast.controller.runtime.metrics import Metrics
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
from holdfast.core.placement.plan import Capacity, JobPlacement
from holdfast.core.records import JobRecord
from holdfast.core.states import JobEvent
from holdfast.moves.values import DrainSnapshot
from holdfast.store.port.store import Store

log = logging.getLogger("holdfast.loops")


class Completions:
    """Decides for the completer, and for falls that are decided with their ends."""

    def __init__(
        self,
        store: Store,
        metrics: Metrics,
        allowance: Allowance,
        dues: DueTimes,
        clock: Callable[[], float],
        chance: Callable[[], float],
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._allowance = allowance
        self._dues = dues
        self._clock = clock
        self._chance = chance

    def plan(self, drain: DrainSnapshot, settings: Settings) -> Completion | None:
        """Return how the drain ends, as far as that is for the job alone; None where a task holds its
        lease."""
        job = drain.job
        policy = settings.policy(job.queue, job.spec)
        return plan_completion(job, drain.tasks, policy, settings.rules, chance=self._chance())

    async def plan_start(
        self, drain: DrainSnapshot, settings: Settings, found: Completion | None
    ) -> Completion | None:
        """Return how the drain ends, of which `plan` has found `found`: after a start that failed
        the other hosts count, too, and after a time limit the checkpoints."""
        if found is None or not needs_more(found):
            return found
        job, known = drain.job, dict[str, bool]()
        if found.decision.cause is Cause.TIME_LIMIT:
            checkpoints = await self._store.checkpoints.list_checkpoints(job.id)
            known["saved"] = any(each.attempt == job.attempts for each in checkpoints)
        else:
            hosts = await self._store.hosts.list_hosts()
            known["elsewhere"] = may_start_elsewhere(job, drain.tasks, hosts)
            known["others_serve"] = do_others_serve(job, drain.tasks, hosts)
        policy = settings.policy(job.queue, job.spec)
        chance = self._chance()
        return plan_completion(job, drain.tasks, policy, settings.rules, chance=chance, **known)

    def take_turn(self, decision: Decision, settings: Settings) -> bool:
        """Return whether the job's retry is due at once and the rate limit lets it go (RATE-1); its
        turn is spent then."""
        if not _backs_off(decision) or decision.delay_seconds > 0:
            return False
        limit = settings.value("retry_rate_limit")
        rate = None if limit is None else float(limit)
        left = self._allowance.refill(rate, self._clock())
        if left is not None and left < 1:
            return False
        self._allowance.spend(1)
        return True

    def give_turn_back(self) -> None:
        """Take note that a turn was not used."""
        self._allowance.spend(-1)

    async def read_room(self, job_id: str, settings: Settings) -> tuple[Capacity, ...] | None:
        """Return the room for the job's next attempt (`DrainStore.read_open_room`)."""
        return await self._store.drains.read_open_room(job_id, settings.silence_seconds)

    def tell(self, drain: DrainSnapshot, completion: Completion, *, at_once: bool) -> None:
        """Log and count a drain that was completed. at_once: its retry was dispatched with it."""
        job, decision = drain.job, completion.decision
        log.info(
            "drain completed: attempt %d %s: %s",
            job.attempts,
            decision.outcome,
            decision.reason,
            extra={**about_drain(job), "queue": job.queue},
        )
        self._count(job, decision)
        self._metrics.drain_seconds.observe(drain.seconds)
        if at_once:
            self._metrics.retry_dispatched.inc()
        elif _backs_off(decision):
            self._dues.expect(decision.delay_seconds)

    def _count(self, job: JobRecord, decision: Decision) -> None:
        metrics, cause = self._metrics, str(decision.cause or "")
        metrics.ended.labels(str(decision.outcome), cause).inc()
        metrics.drains_completed.labels(str(decision.outcome)).inc()
        if decision.retry == "scheduled":
            metrics.retry_scheduled.labels(cause).inc()
        elif decision.retry == "exhausted":
            metrics.retry_exhausted.labels(cause).inc()
        if decision.event is JobEvent.SUCCEED and job.was_retried:
            metrics.retry_succeeded.inc()


def needs_more(completion: Completion) -> bool:
    """Return whether more than the drain decides: after a start that failed, the other hosts; after
    a time limit, the checkpoints that the attempt left (BUDGET-8)."""
    decision = completion.decision
    return decision.rule in (NEVER_STARTS, HOST_START) or decision.cause is Cause.TIME_LIMIT


def about_drain(job: JobRecord) -> dict[str, object]:
    """Return what a line of the log about a job's drain carries."""
    return {"job": job.id, "attempt": job.attempts, "epoch": job.epoch}


def tell_reserved(gangs: Sequence[JobPlacement]) -> None:
    """Log one line for each gang. Jobs of one task are too many for that, and have their events."""
    for gang in gangs:
        hosts = len({task.host_id for task in gang.tasks})
        about = {"job": gang.job_id, "epoch": gang.epoch + 1}
        log.info("reserved: %d tasks on %d hosts", gang.size, hosts, extra=about)


def _backs_off(decision: Decision) -> bool:
    return decision.event is JobEvent.BACK_OFF and decision.held is None
