"""Fallen members of supervised jobs → moved to another host, or the whole job drains."""

import logging
from collections.abc import Sequence

from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.runtime.settings import Settings
from holdfast.core.causes import Cause
from holdfast.core.endings.replace import plan_replacement
from holdfast.moves.values import DueMember

log = logging.getLogger("holdfast.loops")
LIMIT = 500


class MembersLoop(Loop):
    """Decides each member's fall once, because the member's epoch guards the write."""

    name = "members"
    topic = "members"
    by_look = True
    interval_seconds = 2.0

    async def run_once(self) -> Summary:
        controller = self._controller
        found = await controller.store.members.list_members(LIMIT)
        if not found:
            return {}
        settings = await controller.settings.current()
        by_job: dict[str, list[DueMember]] = {}
        for member in found:
            if member.fallen:
                by_job.setdefault(member.job.id, []).append(member)
        replaced = sum([await self._replace(members, settings) for members in by_job.values()])
        late = sum([await self._stop_late(m, settings) for m in found if not m.fallen])
        released = await controller.store.members.release_members(
            settings.number("reservation_seconds")
        )
        if replaced or released:
            controller.poke("admit", "drain", "members", "events")
        if not replaced and not late and not released:
            return {}
        return {"replaced": replaced, "late": late, "released": len(released)}

    async def _replace(self, fallen: Sequence[DueMember], settings: Settings) -> int:
        """Decide the falls of one job's members, all in one transaction."""
        controller = self._controller
        plans = {}
        for member in fallen:
            job, task = member.job, member.task
            try:
                plans[task.key] = plan_replacement(
                    job, task, settings.policy(job.queue, job.spec), settings.rules
                )
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
                # One member that cannot be decided must not hold the others up.
                log.exception(
                    "the fall of rank %d could not be decided", task.rank, extra=_about(member)
                )
        done = await controller.store.members.replace_members(list(plans.items()))
        for member in fallen:
            plan = plans.get(member.task.key)
            if plan is None or not plan.go_on or member.task.key not in done:
                continue
            if plan.parked:
                log.warning("member parked: %s", plan.reason, extra=_about(member))
            else:
                controller.metrics.members_replaced.labels(str(plan.cause)).inc()
                log.info("member replaced: %s", plan.reason, extra=_about(member))
        return len(done)

    async def _stop_late(self, member: DueMember, settings: Settings) -> bool:
        """Stop a replaced member that does not start, so that it gets another host, because its
        present host may be the cause."""
        job, task = member.job, member.task
        limit = settings.start_limit("recovery_timeout_seconds", job.queue, job.spec)
        if member.seconds <= limit or task.offered_at is None:
            return False
        name = "recovery_timeout_seconds" + " with setup_seconds" * job.spec.makes_environment
        reason = f"it did not start within {limit:g} s of its reservation ({name})"
        stopped = await self._controller.store.members.stop_member(
            task.key, Cause.START_TIMEOUT, reason
        )
        if stopped:
            self._controller.poke(f"host:{task.host_id}", "events")
        return stopped


def _about(member: DueMember) -> dict[str, object]:
    task = member.task
    return {
        "job": task.job_id,
        "attempt": task.attempt,
        "epoch": task.epoch,
        "rank": task.rank,
        "host": task.host_id,
    }
