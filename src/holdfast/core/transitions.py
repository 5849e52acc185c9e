"""Every state machine, one table each: (state, event) → (state, why the edge exists).

A pair that is missing raises `InvalidTransition`; nothing is ever ignored silently. The store's SQL
carries out these edges as guarded updates, its CHECK constraints and the conformance suite hold it
to them, and the diagrams in `docs/reference/states.md` are generated from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from holdfast.core.states import (
    AttemptEvent,
    AttemptState,
    HostEvent,
    HostState,
    JobEvent,
    JobState,
    TaskEvent,
    TaskState,
)
from holdfast.errors import InvalidTransition

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)
Table = Mapping[tuple[S, E], tuple[S, str]]

_J, _JE = JobState, JobEvent
JOB: Table[JobState, JobEvent] = {
    (_J.WAITING, _JE.RELEASE): (_J.QUEUED, "what it waited for is there"),
    (_J.WAITING, _JE.CANCEL): (_J.CANCELLED, "nothing runs, so nothing needs a drain"),
    (_J.WAITING, _JE.FAIL): (_J.FAILED, "what it waited for can never come"),
    (_J.QUEUED, _JE.RESERVE): (_J.RESERVED, "admission reserved every task in one transaction"),
    (_J.QUEUED, _JE.CANCEL): (_J.CANCELLED, "nothing runs, so nothing needs a drain"),
    (_J.QUEUED, _JE.HOLD): (_J.WAITING, "an operator or a policy put it aside"),
    (_J.QUEUED, _JE.FAIL): (_J.FAILED, "it can never be placed"),
    (_J.RESERVED, _JE.START): (_J.RUNNING, "every task was claimed and started"),
    (_J.RESERVED, _JE.EXPIRE): (_J.QUEUED, "no task started within the reservation"),
    (_J.RESERVED, _JE.DRAIN): (
        _J.DRAINING,
        "some tasks may have started, so they are stopped together",
    ),
    (_J.RESERVED, _JE.SUCCEED): (_J.SUCCEEDED, "it ran and ended between two reports"),
    (_J.RUNNING, _JE.SUCCEED): (_J.SUCCEEDED, "every task is done"),
    (_J.RUNNING, _JE.DRAIN): (_J.DRAINING, "a task fell, or somebody asked for the capacity back"),
    (_J.DRAINING, _JE.REQUEUE): (_J.QUEUED, "the decision was to run it again at once"),
    (_J.DRAINING, _JE.BACK_OFF): (_J.WAITING, "the decision was to run it again later"),
    (_J.DRAINING, _JE.FAIL): (_J.FAILED, "the decision was to give up"),
    (_J.DRAINING, _JE.CANCEL): (
        _J.CANCELLED,
        "a person asked, and every task is confirmed stopped",
    ),
    (_J.DRAINING, _JE.SUCCEED): (
        _J.SUCCEEDED,
        "every task finished by itself before the stop reached it",
    ),
    (_J.FAILED, _JE.REVIVE): (_J.QUEUED, "a person asked for another attempt"),
    (_J.CANCELLED, _JE.REVIVE): (_J.QUEUED, "a person asked for another attempt"),
}

_T, _TE = TaskState, TaskEvent
TASK: Table[TaskState, TaskEvent] = {
    (_T.BLOCKED, _TE.RESERVE): (_T.RESERVED, "admission chose its host"),
    (_T.RESERVED, _TE.RELEASE): (_T.BLOCKED, "the reservation ran out before it started"),
    (_T.RESERVED, _TE.START): (_T.RUNNING, "its agent reported the process"),
    (_T.RESERVED, _TE.FINISH): (_T.DONE, "it started and ended between two reports"),
    (_T.RESERVED, _TE.FAIL): (_T.FAILED, "it could not be started, or ended between two reports"),
    (_T.RESERVED, _TE.PREEMPT): (
        _T.PREEMPTING,
        "the agent may already have started it, so it must confirm",
    ),
    (_T.RUNNING, _TE.FINISH): (_T.DONE, "exit code 0"),
    (_T.RUNNING, _TE.FAIL): (_T.FAILED, "it ended otherwise, tripped, or its lease lapsed"),
    (_T.RUNNING, _TE.PREEMPT): (_T.PREEMPTING, "its attempt drains"),
    (_T.PREEMPTING, _TE.CONFIRM): (_T.PREEMPTED, "the agent confirmed the end, or the lease did"),
    (_T.PREEMPTING, _TE.FINISH): (
        _T.DONE,
        "it ended by itself before the signal: its own outcome stands",
    ),
    (_T.PREEMPTING, _TE.FAIL): (
        _T.FAILED,
        "it failed by itself before the signal: its own outcome stands",
    ),
    (_T.PREEMPTED, _TE.RESET): (_T.BLOCKED, "the next attempt starts clean"),
    (_T.DONE, _TE.RESET): (_T.BLOCKED, "on_partial = restart"),
    (_T.FAILED, _TE.RESET): (_T.BLOCKED, "the next attempt starts clean"),
}

_A, _AE = AttemptState, AttemptEvent
ATTEMPT: Table[AttemptState, AttemptEvent] = {
    (_A.RESERVED, _AE.START): (_A.RUNNING, "every task started"),
    (_A.RESERVED, _AE.DRAIN): (_A.DRAINING, "stopped before every task had started"),
    (_A.RESERVED, _AE.END): (_A.ENDED, "expired, or over between two reports"),
    (_A.RUNNING, _AE.DRAIN): (_A.DRAINING, "a trigger, whoever asked"),
    (_A.RUNNING, _AE.END): (_A.ENDED, "every task is done"),
    (_A.DRAINING, _AE.END): (_A.ENDED, "every task is confirmed and the decision is written"),
}

_H, _HE = HostState, HostEvent
HOST: Table[HostState, HostEvent] = {
    (_H.SPAWNING, _HE.REGISTER): (_H.PREFLIGHT, "its agent called"),
    (_H.SPAWNING, _HE.FAIL): (_H.ERROR, "it did not come up in time"),
    (_H.SPAWNING, _HE.TERMINATE): (_H.TERMINATED, "no longer wanted"),
    (_H.PREFLIGHT, _HE.REGISTER): (_H.PREFLIGHT, "a new incarnation starts over"),
    (_H.PREFLIGHT, _HE.PASS): (_H.ACTIVE, "it is what it says it is"),
    (_H.PREFLIGHT, _HE.FAIL): (_H.ERROR, "a check failed"),
    (_H.PREFLIGHT, _HE.QUARANTINE): (_H.QUARANTINED, "an operator or the evidence said so"),
    (_H.PREFLIGHT, _HE.TERMINATE): (_H.TERMINATED, "no longer wanted"),
    (_H.ACTIVE, _HE.REGISTER): (_H.PREFLIGHT, "a new incarnation is checked again"),
    (_H.ACTIVE, _HE.DRAIN): (_H.DRAINING, "no new work; running work ends or is drained"),
    (_H.ACTIVE, _HE.QUARANTINE): (_H.QUARANTINED, "an operator or the evidence said so"),
    (_H.ACTIVE, _HE.TERMINATE): (_H.TERMINATED, "gone"),
    (_H.DRAINING, _HE.REGISTER): (_H.DRAINING, "a restart does not lift an operator's word"),
    (_H.DRAINING, _HE.DRAIN): (
        _H.DRAINING,
        "another deadline, or an end to the waiting; asked twice is as asked once",
    ),
    (_H.DRAINING, _HE.UNDRAIN): (_H.ACTIVE, "an operator changed their mind"),
    (_H.DRAINING, _HE.QUARANTINE): (_H.QUARANTINED, "an operator or the evidence said so"),
    (_H.DRAINING, _HE.TERMINATE): (_H.TERMINATED, "empty, and no longer wanted"),
    (_H.QUARANTINED, _HE.REGISTER): (_H.QUARANTINED, "a restart does not lift a quarantine"),
    (_H.QUARANTINED, _HE.RELEASE): (_H.ACTIVE, "an operator let it back"),
    (_H.QUARANTINED, _HE.TERMINATE): (_H.TERMINATED, "given back to its provider"),
    (_H.ERROR, _HE.REGISTER): (_H.PREFLIGHT, "it called after all"),
    (_H.ERROR, _HE.TERMINATE): (_H.TERMINATED, "given back to its provider"),
    (_H.TERMINATED, _HE.REGISTER): (_H.PREFLIGHT, "an owned machine came back under its key"),
}


def step(table: Table[S, E], state: S, event: E) -> S:
    """Return the state after `event`.

    Raises:
        InvalidTransition: the table holds no such pair; the message lists what the state does
        accept.
    """
    try:
        return table[state, event][0]
    except KeyError:
        accepted = sorted(str(e) for s, e in table if s == state) or ["nothing: the state is final"]
        raise InvalidTransition(
            f"{type(state).__name__} {state} does not take {event}; it takes {', '.join(accepted)}"
        ) from None


def sources(table: Table[S, E], event: E) -> frozenset[S]:
    """Return the states that accept `event`: the guard of the update that carries the edge out."""
    return frozenset(s for s, e in table if e == event)
