"""What a draining job needs next: wait, or be completed, and with which decision.

DRAIN-1  A drain is completed only when no task holds a lease: every end is confirmed (GANG-3).
DRAIN-2  The trigger is the initiating failure: first in time among the tasks that failed by themselves.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.classify import classify
from holdfast.core.decide import Charges, Decision, Ending, Policy, decide, decide_success
from holdfast.core.facts import Classified
from holdfast.core.records import JobRecord, MemberRecord, TaskRecord
from holdfast.core.rules import OperatorRule
from holdfast.core.states import TaskState


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A drain that is over: the decision, the trigger's rank and how each member ended."""

    decision: Decision
    trigger_rank: int | None
    members: tuple[MemberRecord, ...]


def plan_completion(
    job: JobRecord, tasks: Sequence[TaskRecord], policy: Policy, rules: Sequence[OperatorRule], *, chance: float
) -> Completion | None:
    """Return how the drain of `job` ends, or None while any task still holds its lease (DRAIN-1).

    rules: the operators' own. chance: uniform in [0, 1), for a retry's random jitter.
    """
    if any(task.state.holds_lease for task in tasks):
        return None
    charges = Charges(
        retries=job.retries_charged, watchdog=job.watchdog_charged, infra=job.infra_charged,
        best_step=job.best_step, no_progress=job.no_progress,
    )  # fmt: skip
    trigger = find_trigger(job, tasks)
    members = tuple(_member(task, trigger, rules) for task in tasks)
    if tasks and all(task.state is TaskState.DONE for task in tasks):
        return Completion(decision=decide_success(charges, job.attempts), trigger_rank=None, members=members)
    if job.drain_cause is not None and (trigger is None or job.drain_cause is Cause.USER_CANCELLED):
        facts = next(
            (task.facts for task in ([trigger] if trigger else []) + list(tasks) if task.facts is not None),
            None,
        )
        code = None if facts is None else classify(facts, rules).exit_code
        found = Classified(
            cause=job.drain_cause,
            rule="asked",
            message=job.drain_reason or str(job.drain_cause),
            exit_code=code,
        )
    elif trigger is not None and trigger.facts is not None:
        found = classify(trigger.facts, rules)
    else:
        found = Classified(
            cause=Cause.UNKNOWN, rule="none", message="its attempt ended and nothing says why", exit_code=None
        )
    rank = None if trigger is None else trigger.rank
    decision = decide(found, charges, policy, _ending(job, tasks, trigger), chance=chance)
    return Completion(decision=decision, trigger_rank=rank, members=members)


def _ending(job: JobRecord, tasks: Sequence[TaskRecord], trigger: TaskRecord | None) -> Ending:
    steps = [task.step for task in tasks if task.step is not None]
    whose = [trigger] if trigger is not None else tasks
    ran = [task.facts.runtime_seconds for task in whose if task.facts is not None]
    return Ending(
        job_id=job.id, interactive=job.spec.interactive, ran_seconds=max(ran, default=0.0),
        step=max(steps, default=None),
    )  # fmt: skip


def find_trigger(job: JobRecord, tasks: Sequence[TaskRecord]) -> TaskRecord | None:
    """Return the task that started the fall: the one on record, else the first that failed by itself (DRAIN-2)."""
    failed = [task for task in tasks if task.state is TaskState.FAILED]
    for task in failed:
        if task.rank == job.trigger_rank:
            return task
    return min(failed, key=lambda t: (t.ended_at is None, t.ended_at, t.rank), default=None)


def _member(task: TaskRecord, trigger: TaskRecord | None, rules: Sequence[OperatorRule]) -> MemberRecord:
    found = classify(task.facts, rules) if task.state is TaskState.FAILED and task.facts is not None else None
    code = 0 if task.state is TaskState.DONE else (found.exit_code if found else None)
    return MemberRecord(
        rank=task.rank, host=task.host_name, state=task.state, exit_code=code, cause=found.cause if found else None,
        rule=found.rule if found else None, message=found.message if found else "",
        evidence=found.evidence if found else {},
        trigger=trigger is not None and task.rank == trigger.rank, facts=task.facts,
    )  # fmt: skip
