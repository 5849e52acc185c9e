"""plan_completion(…): whether a draining job can be completed now, and with which decision.

DRAIN-1  A drain is completed only when no task holds a lease: every end is confirmed (GANG-3).
GANG-4   Each rank of a gang has its own count of what it was charged. Only the trigger's grows, and
         the job ends when that one is over its budget: a member that always fails ends it, three
         that fail once each do not.
GANG-5   Finished work is not run again: where some tasks are done, or failed for good, and the
         others must start anew, the job fails, unless its spec says `on_partial = "restart"`.
MEMBER-4  A supervised job ends as its script, rank 0, does: another rank's end counts only where it
          is the trigger.
"""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.endings.classify import OPERATOR, classify
from holdfast.core.endings.decide import (
    AttemptEnding,
    Charges,
    Decision,
    Policy,
    add_notices,
    decide,
    decide_success,
    is_final,
)
from holdfast.core.endings.fallen import classify_fallen, name_rank, name_silent
from holdfast.core.endings.replace import find_member_cause
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.endings.trigger import classify_failures, find_silent, find_trigger, is_cascade
from holdfast.core.facts import LAPSED, Classified
from holdfast.core.host_faults import find_hindrance, find_runtime_word
from holdfast.core.placement.eligible import carries, serves
from holdfast.core.records import HostRecord, JobRecord, MemberRecord, RankCharges, TaskRecord
from holdfast.core.states import HostState, JobEvent, Outcome, TaskState

MAX_TRIED_HOSTS = 3


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a drain that is over.

    trigger_rank: the rank whose failure began it. members: the end of each task. totals: charges of
    all ranks together after it. rank_charges: in a gang, the charges of each rank, by its number as
    text.
    """

    decision: Decision
    trigger_rank: int | None
    members: tuple[MemberRecord, ...]
    totals: RankCharges = RankCharges()
    rank_charges: Mapping[str, RankCharges] = {}


def plan_completion(
    job: JobRecord,
    tasks: Sequence[TaskRecord],
    policy: Policy,
    rules: Sequence[OperatorRule],
    *,
    chance: float,
    elsewhere: bool = False,
    others_serve: bool = False,
    saved: bool = False,
) -> Completion | None:
    """Return how the drain of `job` ends, or None while any task still holds its lease (DRAIN-1).

    rules: the operators' rules. chance: uniform in [0, 1), for a retry's random jitter. elsewhere:
    the result of `may_start_elsewhere`. others_serve: the result of `do_others_serve`. saved: the
    attempt left a checkpoint.
    """
    if any(task.state.holds_lease for task in tasks):
        return None
    trigger, failures = find_fall(job, tasks, rules)
    members = tuple(_member(task, trigger, failures) for task in tasks)
    before = RankCharges(
        retries=job.retries_charged, watchdog=job.watchdog_charged, infra=job.infra_charged
    )
    silent = [] if job.spec.supervised else find_silent(tasks, trigger)
    charges = _charges_of(job, before, trigger, silent=bool(silent))
    notices = [said for task in tasks if task.facts is not None for said in task.facts.notices]
    if _is_done(job, tasks):
        decision = decide_success(charges, job.attempts, notices)
        return Completion(
            decision=decision,
            trigger_rank=None,
            members=members,
            totals=before,
            rank_charges=job.rank_charges,
        )
    found = _find_cause(job, tasks, trigger, failures, rules, silent)
    ending = msgspec.structs.replace(
        _ending(job, tasks, trigger), elsewhere=elsewhere, others_serve=others_serve, saved=saved
    )
    decision = decide(found, charges, policy, ending, chance=chance)
    again = decision.event in (JobEvent.REQUEUE, JobEvent.BACK_OFF)
    wrong = job.drain_cause is Cause.SILENT_CORRUPTION  # finished work is run again for that
    if again and job.spec.on_partial == "fail" and not job.spec.supervised and not wrong:
        decision = _refuse_partial(decision, tasks, trigger, failures, policy)
    if len({task.host_id for task in tasks if task.rank in silent}) > 1:
        decision = msgspec.structs.replace(decision, avoid_host=False)
    told = add_notices(decision.reason, notices)
    decision = msgspec.structs.replace(decision, reason=told)
    totals, rank_charges = _add_up(job, before, charges, decision, trigger)
    rank = None if trigger is None else trigger.rank
    return Completion(
        decision=decision,
        trigger_rank=rank,
        members=members,
        totals=totals,
        rank_charges=rank_charges,
    )


def may_start_elsewhere(
    job: JobRecord, tasks: Sequence[TaskRecord], hosts: Sequence[HostRecord]
) -> bool:
    """Return whether an eligible host is left that has not tried to start the job (BUDGET-7); after
    `MAX_TRIED_HOSTS` hosts, or one where its program was wrong (BUDGET-9), no further one is
    tried."""
    if job.cause is Cause.PROGRAM_ERROR:
        return False
    avoided = set(job.avoid_hosts)
    tried = avoided | {task.host_id for task in tasks if task.host_id is not None}
    if job.start_failures + 1 >= MAX_TRIED_HOSTS and len(avoided) + 1 >= MAX_TRIED_HOSTS:
        return False
    return any(host.id not in tried and _is_eligible(job, host) for host in hosts)


def do_others_serve(
    job: JobRecord, tasks: Sequence[TaskRecord], hosts: Sequence[HostRecord]
) -> bool:
    """Return whether every host that failed to start the job has set itself aside, while other
    hosts could run it, now or once they are free (ASIDE-2)."""
    failed = {t.host_id for t in tasks if t.facts is not None and t.facts.start_error is not None}
    able = {host.id for host in hosts if _is_eligible(job, host)}
    return bool(failed) and failed.isdisjoint(able) and len(able) > 0


def _is_eligible(job: JobRecord, host: HostRecord) -> bool:
    labelled = serves(host.queues, job.queue) and carries(host.able_labels, job.spec.host_labels)
    large = host.cpu_slots >= job.cpu_slots and host.memory_bytes >= job.memory_bytes
    runtime = find_runtime_word(job.spec.image, job.spec.runtime)
    alive = host.state is HostState.ACTIVE and host.flagged_dead_at is None
    able = alive and find_hindrance(host.faults, runtime) is None
    return able and labelled and large and len(host.gpus) >= job.gpus


def find_fall(
    job: JobRecord, tasks: Sequence[TaskRecord], rules: Sequence[OperatorRule]
) -> tuple[TaskRecord | None, dict[int, Classified]]:
    """Return the task that began the fall (None where none is known), and the failure of each rank
    that failed by itself."""
    failures = _find_failures(job, tasks, rules)
    if job.drain_cause is None:
        asked = False
    elif job.trigger_rank is None:
        asked = True
    else:  # a start was given up: a rank's place was not kept, or its host could not start it
        began = failures.get(job.trigger_rank)
        by_rule = began is not None and began.rule.startswith(OPERATOR)
        late = job.drain_cause is Cause.START_TIMEOUT and not by_rule
        asked = late and not _is_fallen_member(job, tasks)
    return find_trigger(tasks, failures, asked=asked), failures


def _is_done(job: JobRecord, tasks: Sequence[TaskRecord]) -> bool:
    """Return whether the work is done: every rank ended well, and none is known to be wrong."""
    if job.drain_cause is Cause.SILENT_CORRUPTION:
        return False
    deciding = [task for task in tasks if task.rank == 0] if job.spec.supervised else tasks
    return bool(deciding) and all(task.state is TaskState.DONE for task in deciding)


def _find_failures(
    job: JobRecord, tasks: Sequence[TaskRecord], rules: Sequence[OperatorRule]
) -> dict[int, Classified]:
    failures = classify_failures(tasks, rules)
    if not failures and any(
        t.rank == job.trigger_rank and t.state is TaskState.DONE for t in tasks
    ):
        # LATE-1: the rank that began the drain has ended well, so it is a lapse of other ranks.
        lapsed = [t for t in tasks if t.facts is not None and t.facts.lost == LAPSED]
        failures = {t.rank: classify_fallen(t.facts, rules, member=False) for t in lapsed}
    if not job.spec.supervised:
        return failures
    # MEMBER-4: fallen ranks other than 0 are replaced, so none of them began this drain.
    found = {rank: failure for rank, failure in failures.items() if rank == 0}
    for task in tasks:
        # A rank whose place was not kept (`moves.jobs.requests.run_out`) has no failure of its own.
        began = task.rank == job.trigger_rank and task.rank > 0
        if began and (task.rank in failures or _is_fallen_member(job, [task])):
            found[task.rank] = find_member_cause(task, rules)
    return found


def _is_fallen_member(job: JobRecord, tasks: Sequence[TaskRecord]) -> bool:
    """Return whether a member that was given up after its start began the drain (MEMBER-2)."""
    members = [t for t in tasks if t.rank > 0 and t.barrier] if job.spec.supervised else []
    return any(t.rank == job.trigger_rank for t in members)


def _find_cause(
    job: JobRecord,
    tasks: Sequence[TaskRecord],
    trigger: TaskRecord | None,
    failures: Mapping[int, Classified],
    rules: Sequence[OperatorRule],
    silent: Sequence[int],
) -> Classified:
    if job.drain_cause is not None and (trigger is None or job.drain_cause is Cause.USER_CANCELLED):
        known = [t.facts for t in ([trigger] if trigger else []) + list(tasks) if t.facts]
        code = classify(known[0], rules).exit_code if known else None
        message = job.drain_reason or str(job.drain_cause)
        return Classified(cause=job.drain_cause, rule="asked", message=message, exit_code=code)
    if trigger is not None and trigger.rank in failures:
        found = failures[trigger.rank]
        if job.tasks == 1:
            return found
        if silent:
            return name_silent(found, silent, job.tasks)
        return name_rank(found, trigger.rank, trigger.host_name)
    message = "its attempt ended and nothing says why"
    return Classified(cause=Cause.UNKNOWN, rule="none", message=message, exit_code=None)


def _charges_of(
    job: JobRecord, before: RankCharges, trigger: TaskRecord | None, *, silent: bool
) -> Charges:
    """Return the charges that the decision adds to: in a gang the trigger's own (GANG-4), else the
    job's, as for the silence of several ranks (SILENT-1)."""
    mine = _find_own(job, trigger) or before
    return Charges(
        retries=mine.retries,
        watchdog=before.watchdog if silent else mine.watchdog,
        infra=mine.infra,
        best_step=job.best_step,
        no_progress=job.no_progress,
        start_failures=job.start_failures,
        infra_in_row=job.infra_in_row,
    )


def _find_own(job: JobRecord, trigger: TaskRecord | None) -> RankCharges | None:
    """Return what the trigger of a gang was charged before; None where the job is charged."""
    if job.tasks == 1 or trigger is None:
        return None
    return job.rank_charges.get(str(trigger.rank), RankCharges())


def _add_up(
    job: JobRecord,
    before: RankCharges,
    charges: Charges,
    decision: Decision,
    trigger: TaskRecord | None,
) -> tuple[RankCharges, Mapping[str, RankCharges]]:
    after, own = decision.charges, _find_own(job, trigger)
    mine = RankCharges(retries=after.retries, watchdog=after.watchdog, infra=after.infra)
    if own is None or trigger is None:
        return mine, ({} if decision.reset else job.rank_charges)
    if decision.reset:
        return mine, {str(trigger.rank): mine}

    def add(to: RankCharges) -> RankCharges:
        return RankCharges(
            retries=to.retries + after.retries - charges.retries,
            watchdog=to.watchdog + after.watchdog - charges.watchdog,
            infra=to.infra + after.infra - charges.infra,
        )

    return add(before), {**job.rank_charges, str(trigger.rank): add(own)}


def _refuse_partial(
    decision: Decision,
    tasks: Sequence[TaskRecord],
    trigger: TaskRecord | None,
    failures: Mapping[int, Classified],
    policy: Policy,
) -> Decision:
    """Fail where finished work would run again, or another rank is never retried (GANG-5)."""
    done = [task.rank for task in tasks if task.state is TaskState.DONE]
    lost = [
        task.rank
        for task in tasks
        if (found := failures.get(task.rank)) is not None
        and task is not trigger
        and not is_cascade(found, task.facts)
        and is_final(found, policy)
    ]
    if not done and not lost:
        return decision
    if done:
        why = f"rank {done[0]} had finished its work"
    else:
        why = f"rank {lost[0]} failed of {failures[lost[0]].cause}"
    fall = decision.reason.split("; ")[0]
    text = f"{fall}; {why}, and on_partial = fail forbids to run the whole again"
    return msgspec.structs.replace(
        decision,
        event=JobEvent.FAIL,
        outcome=Outcome.FAILED,
        reason=text,
        front=False,
        avoid_host=False,
        delay_seconds=0.0,
        retry=None,
        held=None,
        parked=False,
    )


def _ending(
    job: JobRecord, tasks: Sequence[TaskRecord], trigger: TaskRecord | None
) -> AttemptEnding:
    steps = [task.step for task in tasks if task.step is not None]
    whose = [trigger] if trigger is not None else tasks
    ran = [task.facts.runtime_seconds for task in whose if task.facts is not None]
    starts = [task.started_at for task in whose if task.started_at is not None]
    lasted = 0.0
    if starts and job.drain_since is not None:
        lasted = (job.drain_since - min(starts)).total_seconds()
    return AttemptEnding(
        job_id=job.id,
        interactive=job.spec.interactive,
        ran_seconds=max(ran, default=0.0),
        lasted_seconds=lasted,
        step=max(steps, default=None),
        own_limit=isinstance(job.spec.time_limit_seconds, float | int),
    )


def _member(
    task: TaskRecord, trigger: TaskRecord | None, failures: Mapping[int, Classified]
) -> MemberRecord:
    found = failures.get(task.rank)
    code = 0 if task.state is TaskState.DONE else (found.exit_code if found else None)
    triggered = trigger is not None and task.rank == trigger.rank
    return MemberRecord(
        rank=task.rank,
        host=task.host_name,
        state=task.state,
        exit_code=code,
        cause=found.cause if found else None,
        rule=found.rule if found else None,
        message=found.message if found else "",
        evidence=found.evidence if found else {},
        trigger=triggered,
        cascade=found is not None and not triggered and is_cascade(found, task.facts),
        facts=task.facts,
    )
