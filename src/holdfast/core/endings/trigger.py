"""find_trigger(…) → the rank that began the fall of a gang; the other ranks only fell with it.

DRAIN-2  The trigger is the initiating failure, not the loudest. A rank that reports a peer's death
         is part of the cascade while another rank fell of something else; among the others the
         first in time counts, and where several fell together, the one with the strongest evidence.
         A rank that was asked to end and survived SIGKILL began no fall where another rank fell.
         Where the gang was asked to go (preempted, its host drained, its start too slow) no rank
         began the fall: a rank that dies of that is charged with nothing, unless its own fault was
         measured.
SILENT-1  Ranks that wait for each other fall silent together, and which of them a watchdog stops first
         is chance: the hang is the gang's, so no rank is named alone, and each one counts against the
         whole job's budget of watchdogs.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from holdfast.core.causes import Watchdog
from holdfast.core.endings.fallen import classify_fallen
from holdfast.core.endings.patterns import CASCADE_RULES
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.endings.xids import Blame, find_xid
from holdfast.core.facts import Classified, TaskFacts
from holdfast.core.records import TaskFields, TaskRecord
from holdfast.core.states import TaskState

TOGETHER = timedelta(seconds=2)
"""Ends reported within this time of the first one may have happened in another order."""
SIGTERM = 15
SILENCES = (Watchdog.STALL, Watchdog.GPU_HEALTH)
MEASURED = 3
"""The weight of evidence that the fall of another task cannot cause."""


def classify_failures(
    tasks: Sequence[TaskRecord], rules: Sequence[OperatorRule]
) -> dict[int, Classified]:
    """Return rank → why it failed, for the tasks that failed by themselves."""
    return {
        t.rank: classify_fallen(t.facts, rules, member=False)
        for t in tasks
        if t.state is TaskState.FAILED and t.facts is not None
    }


def is_cascade(found: Classified, facts: TaskFacts | None) -> bool:
    """Return whether a task's failure follows from the failure of another task: the rule says that
    a peer died, or SIGTERM ended the task although no watchdog had tripped."""
    if found.rule in CASCADE_RULES:
        return True
    return facts is not None and facts.trip is None and facts.signal == SIGTERM


def weigh_evidence(facts: TaskFacts) -> int:
    """Return how surely a failure is the task's own: measured by its host (3), shown by its exit
    code, signal or start error (2), or only its silence (1)."""
    broken = facts.unkillable or find_xid(facts.xids, Blame.HARDWARE) or facts.ecc_errors
    if broken or facts.gpu_lost or facts.oom or facts.trip is not None:
        return MEASURED
    if facts.signal is not None or facts.exit_code is not None or facts.start_error is not None:
        return 2
    return 1


def find_silent(tasks: Sequence[TaskFields], trigger: TaskFields | None) -> list[int]:
    """Return the ranks that fell silent together with the trigger, by their last beats or because a
    watchdog stopped them, too (SILENT-1); an empty list where it was alone, or fell of something
    else."""
    trip = None if trigger is None or trigger.facts is None else trigger.facts.trip
    if trigger is None or trip is None or trip.watchdog not in SILENCES:
        return []
    told = trip.evidence.get("silent_seconds")
    silent = float(told) if isinstance(told, int | float) else 0.0
    until = None
    if trigger.beat_at is not None:
        until = trigger.beat_at + max(TOGETHER, timedelta(seconds=silent / 2))
    found = [t.rank for t in tasks if t.rank == trigger.rank or _is_silent(t, until)]
    return sorted(found) if len(found) > 1 else []


def _is_silent(task: TaskFields, until: datetime | None) -> bool:
    trip = None if task.facts is None else task.facts.trip
    if trip is not None and trip.watchdog in SILENCES:
        return True
    return until is not None and task.beat_at is not None and task.beat_at <= until


def find_trigger(
    tasks: Sequence[TaskRecord], found: Mapping[int, Classified], *, asked: bool = False
) -> TaskRecord | None:
    """Return the task that began the fall (DRAIN-2), None where no task failed by itself.

    found: the failure of each rank that failed. asked: the drain began for another reason than a
    task's failure (a cancel, a preemption).
    """
    failed = [task for task in tasks if task.rank in found]
    own = [task for task in failed if not is_cascade(found[task.rank], task.facts)]
    # A gang that was ordered to stop loses ranks to the order, unless a fault was measured.
    if asked and len(tasks) > 1:
        own = [t for t in own if t.facts is not None and weigh_evidence(t.facts) == MEASURED]
    else:
        own = [task for task in own if not _outlives_its_stop(task.facts)] or own or failed
    ends = [task.ended_at for task in own if task.ended_at is not None]
    if ends:
        until = min(ends) + TOGETHER
        own = [task for task in own if task.ended_at is not None and task.ended_at <= until]
    return min(own, key=_order, default=None)


def _outlives_its_stop(facts: TaskFacts | None) -> bool:
    return facts is not None and facts.stopped and facts.unkillable and facts.trip is None


def _order(task: TaskRecord) -> tuple[int, bool, float, int]:
    weight = weigh_evidence(task.facts) if task.facts is not None else 0
    ended = task.ended_at.timestamp() if task.ended_at is not None else 0.0
    return (-weight, task.ended_at is None, ended, task.rank)
