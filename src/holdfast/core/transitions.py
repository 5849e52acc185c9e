"""Every state machine, one table each: (state, event) → (state, why the edge exists).

A pair that is missing raises `InvalidTransition`; nothing is ignored silently. The store's CHECK
constraints and the conformance suite hold it to these edges, and `docs/reference/states.md` is drawn
from here.

Which statement of the store writes an edge. `insert_jobs` begins a job. `reserve_jobs` alone carries
out `reserve` of a job, with its tasks and its attempt, for each of three plans: the leader's, that of
a host's own sync, and that of a submission that finds a waiting host. Every other edge of a job, a
task or an attempt is decided in `moves` and written by `write_jobs`, `write_tasks` (`rewrite_tasks`
where a member changes its place), `write_attempts` and `clear_tasks`. One edge has a second writer:
`finish_jobs` ends jobs of one task that succeeded, and `store/postgres/sync/ends.py` says what that
buys. `tests/store/test_writers.py` finds no other statement that writes a state of these three.

How the machines are coupled. Each line below is one transaction of the store (`moves`), so no
reader ever sees a part of it. A job has at most one attempt that has not ended, and one task for
each rank of that attempt.

    job reserve        a new attempt begins `reserved`; every task takes `reserve`
    task start         the last task to start takes the job and its attempt through `start`
    task finish        the last task to finish takes the job through `succeed`, its attempt
                       through `end`, and its rows are deleted; a reserved job whose other tasks
                       all run takes `start`; a supervised job whose rank 0 finishes before the
                       others takes `drain`
    task fail          the job and its attempt take `drain`, unless the task is a member of a
                       supervised job: that one is decided on by itself (see below)
    job drain          the attempt takes `drain`; every reserved or running task takes `preempt`,
                       and `confirm` at once where its host was never told to run it
    last task that holds a lease takes `finish`, `fail` or `confirm` while the job drains
                       nothing yet: the leader's drain loop sees that the drain is complete
                       (DRAIN-1) and decides
    job requeue, back_off, fail, cancel or succeed, out of `draining`
                       the attempt takes `end`; the task rows are deleted
    job expire         the attempt takes `end`; every task takes `release`, and its row is deleted
    job cancel, out of `reserved` before any host was told
                       `expire`, then `cancel`
    host terminate, or a register under a new incarnation
                       every task on it that holds a lease is lost: `fail`, or `confirm` where it
                       was `preempting`; a `fail` goes on as above
    host drain, quarantine
                       nothing by itself: its tasks run on. A hard one, or a drain whose deadline
                       has passed, takes each job there through `drain`, and a member of a
                       supervised job through `preempt` alone.

    host fail          nothing by itself: its leases are renewed no more, so that they lapse; its
                       instance takes `end`; when its tasks may be freed, it takes `terminate`
    instance `deny`, `miss` or `vanish`
                       the host takes `fail`, unless its end was wanted, and then `terminate`

A member (rank above 0) of a supervised job moves alone while the job stays `reserved` or `running`:
`fail`, or `preempt` and `confirm`; then either the job takes `drain`, or the member takes `reset`,
and later `reserve` on another host under a new epoch.

The agent's task and the store's task meet in `sync` alone, and each may be ahead of the other:

    store's task       agent's task
    `reserve`          none yet; a rank of a gang is a claim, which is a promise and no task
    offered            `ordered`, `fetching` where it has a checkpoint, then `launched`
    `start`            caused by the report of `running`
    `preempt`          the agent has the guardian stop it, and the state stays until the guardian
                       reports the end; a task that is not `launched` yet takes `give_up`
    `finish`, `fail`, `confirm`
                       caused by the report of `reported`; the answer to that report
                       takes the agent's task through `acknowledge`
    `fail` or `confirm` without a report, because the lease lapsed
                       the guardian has ended it before, by its own clock (LEASE-2); the late report
                       is refused (FENCE-1), and a refusal, too, means `acknowledge`
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeVar

from holdfast.core.states import (
    AgentTaskEvent,
    AgentTaskState,
    AttemptEvent,
    AttemptState,
    HostEvent,
    HostState,
    InstanceEvent,
    InstanceState,
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
    (_J.WAITING, _JE.RELEASE): (_J.QUEUED, "its wait is over"),
    (_J.WAITING, _JE.CANCEL): (_J.CANCELLED, "nothing runs, so nothing needs a drain"),
    (_J.QUEUED, _JE.RESERVE): (_J.RESERVED, "admission reserved every task in one transaction"),
    (_J.QUEUED, _JE.CANCEL): (_J.CANCELLED, "nothing runs, so nothing needs a drain"),
    (_J.RESERVED, _JE.START): (_J.RUNNING, "every task was claimed and started"),
    (_J.RESERVED, _JE.EXPIRE): (
        _J.QUEUED,
        "no host was told of it in time, or its host gave it back before it began",
    ),
    (_J.RESERVED, _JE.DRAIN): (
        _J.DRAINING,
        "some tasks may have started, so they are stopped together",
    ),
    (_J.RESERVED, _JE.SUCCEED): (_J.SUCCEEDED, "it ran and ended between two reports"),
    (_J.RUNNING, _JE.SUCCEED): (_J.SUCCEEDED, "every task is done"),
    (_J.RUNNING, _JE.DRAIN): (
        _J.DRAINING,
        "a task fell, or a person or a more important job needs its place",
    ),
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
    (_J.FAILED, _JE.LINE_UP): (_J.WAITING, "the same, when its array has room"),
    (_J.CANCELLED, _JE.LINE_UP): (_J.WAITING, "the same, when its array has room"),
}

_T, _TE = TaskState, TaskEvent
TASK: Table[TaskState, TaskEvent] = {
    (_T.BLOCKED, _TE.RESERVE): (_T.RESERVED, "admission chose its host"),
    (_T.RESERVED, _TE.RELEASE): (_T.BLOCKED, "its job expired before it started"),
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
    (_T.PREEMPTED, _TE.RESET): (_T.BLOCKED, "a member of a supervised job waits for another host"),
    (_T.FAILED, _TE.RESET): (_T.BLOCKED, "a member of a supervised job waits for another host"),
}

_A, _AE = AttemptState, AttemptEvent
ATTEMPT: Table[AttemptState, AttemptEvent] = {
    (_A.RESERVED, _AE.START): (_A.RUNNING, "every task started"),
    (_A.RESERVED, _AE.DRAIN): (_A.DRAINING, "stopped before every task had started"),
    (_A.RESERVED, _AE.END): (_A.ENDED, "expired, given back, or over between two reports"),
    (_A.RUNNING, _AE.DRAIN): (_A.DRAINING, "a task fell, or it was told to stop"),
    (_A.RUNNING, _AE.END): (_A.ENDED, "every task is done"),
    (_A.DRAINING, _AE.END): (_A.ENDED, "every task is confirmed and the decision is written"),
}

_H, _HE = HostState, HostEvent
HOST: Table[HostState, HostEvent] = {
    (_H.SPAWNING, _HE.REGISTER): (_H.PREFLIGHT, "its agent called"),
    (_H.SPAWNING, _HE.FAIL): (_H.ERROR, "it did not come up in time"),
    (_H.SPAWNING, _HE.TERMINATE): (_H.TERMINATED, "no longer wanted"),
    (_H.PREFLIGHT, _HE.REGISTER): (_H.PREFLIGHT, "a new incarnation starts over"),
    (_H.PREFLIGHT, _HE.PASS): (_H.ACTIVE, "its checks passed"),
    (_H.PREFLIGHT, _HE.FAIL): (_H.ERROR, "a check failed"),
    (_H.PREFLIGHT, _HE.QUARANTINE): (_H.QUARANTINED, "an operator or the evidence said so"),
    (_H.PREFLIGHT, _HE.TERMINATE): (_H.TERMINATED, "no longer wanted"),
    (_H.ACTIVE, _HE.REGISTER): (_H.PREFLIGHT, "a new incarnation is checked again"),
    (_H.ACTIVE, _HE.DRAIN): (_H.DRAINING, "no new work; running work ends or is drained"),
    (_H.ACTIVE, _HE.QUARANTINE): (_H.QUARANTINED, "an operator or the evidence said so"),
    (_H.ACTIVE, _HE.TERMINATE): (_H.TERMINATED, "gone"),
    (_H.ACTIVE, _HE.FAIL): (_H.ERROR, "it fell silent, is stuck, or its machine is gone"),
    (_H.DRAINING, _HE.REGISTER): (_H.DRAINING, "a restart does not lift an operator's word"),
    (_H.DRAINING, _HE.DRAIN): (
        _H.DRAINING,
        "another deadline, or an end to the waiting; asked twice is as asked once",
    ),
    (_H.DRAINING, _HE.UNDRAIN): (_H.ACTIVE, "an operator changed their mind"),
    (_H.DRAINING, _HE.QUARANTINE): (_H.QUARANTINED, "an operator or the evidence said so"),
    (_H.DRAINING, _HE.TERMINATE): (_H.TERMINATED, "empty, and no longer wanted"),
    (_H.DRAINING, _HE.FAIL): (_H.ERROR, "it fell silent, is stuck, or its machine is gone"),
    (_H.QUARANTINED, _HE.REGISTER): (_H.QUARANTINED, "a restart does not lift a quarantine"),
    (_H.QUARANTINED, _HE.RELEASE): (_H.ACTIVE, "an operator let it back"),
    (_H.QUARANTINED, _HE.TERMINATE): (_H.TERMINATED, "given back to its provider"),
    (_H.QUARANTINED, _HE.FAIL): (_H.ERROR, "it fell silent, or its machine is gone"),
    (_H.ERROR, _HE.REGISTER): (_H.PREFLIGHT, "it called after all"),
    (_H.ERROR, _HE.TERMINATE): (_H.TERMINATED, "given back to its provider"),
    (_H.TERMINATED, _HE.REGISTER): (_H.PREFLIGHT, "an owned machine came back under its key"),
}

_I, _IE = InstanceState, InstanceEvent
INSTANCE: Table[InstanceState, InstanceEvent] = {
    (_I.INTENDED, _IE.ASK): (_I.ASKED, "on record before the provider is asked (RENT-1)"),
    (_I.INTENDED, _IE.END): (_I.GONE, "no longer wanted, and nothing was made"),
    (_I.ASKED, _IE.MAKE): (_I.MADE, "the provider answered, or a listing showed it"),
    (_I.ASKED, _IE.DENY): (_I.GONE, "the provider said that it made nothing"),
    (_I.ASKED, _IE.MISS): (_I.GONE, "listings long after the question do not show it"),
    (_I.ASKED, _IE.END): (_I.ENDING, "no longer wanted; a listing may still show it"),
    (_I.MADE, _IE.END): (_I.ENDING, "no longer wanted, or in error"),
    (_I.MADE, _IE.VANISH): (_I.GONE, "the provider is believed that it is gone"),
    (_I.ENDING, _IE.END): (_I.ENDING, "asked twice is as asked once"),
    (_I.ENDING, _IE.MAKE): (_I.ENDING, "its id became known late, and its end is still wanted"),
    (_I.ENDING, _IE.MISS): (_I.GONE, "listings long after the question do not show it"),
    (_I.ENDING, _IE.VANISH): (_I.GONE, "the provider confirmed its end"),
}

_G, _GE = AgentTaskState, AgentTaskEvent
AGENT_TASK: Table[AgentTaskState, AgentTaskEvent] = {
    (_G.ORDERED, _GE.FETCH): (_G.FETCHING, "it starts from a checkpoint (SAVE-3)"),
    (_G.ORDERED, _GE.LAUNCH): (_G.LAUNCHED, "it starts from nothing"),
    (_G.ORDERED, _GE.GIVE_UP): (
        _G.REPORTED,
        "it cannot be started here, or was stopped or given back before",
    ),
    (_G.FETCHING, _GE.LAUNCH): (_G.LAUNCHED, "its checkpoint is here"),
    (_G.FETCHING, _GE.GIVE_UP): (_G.REPORTED, "its checkpoint cannot be had, or it was stopped"),
    (_G.ORDERED, _GE.SALVAGE): (_G.ACKNOWLEDGED, "no guardian holds it: only its logs are left"),
    (_G.LAUNCHED, _GE.RUN): (_G.RUNNING, "its process, or its container's first one, is there"),
    (_G.LAUNCHED, _GE.END): (_G.ENDING, "it could not be started, or is over already"),
    (_G.LAUNCHED, _GE.GIVE_UP): (_G.REPORTED, "the guardian does not hold it"),
    (_G.RUNNING, _GE.END): (_G.ENDING, "its whole tree is gone"),
    (_G.RUNNING, _GE.GIVE_UP): (_G.REPORTED, "the guardian does not hold it any more"),
    (_G.ENDING, _GE.SAVE): (_G.SAVING, "it left checkpoints for the next attempt (SAVE-1)"),
    (_G.ENDING, _GE.REPORT): (_G.REPORTED, "all is known, and nothing has to be uploaded"),
    (_G.SAVING, _GE.REPORT): (_G.REPORTED, "they are uploaded, or the wait is over"),
    (_G.REPORTED, _GE.ACKNOWLEDGE): (_G.ACKNOWLEDGED, "the controller has its end, or never will"),
    (_G.ACKNOWLEDGED, _GE.FORGET): (_G.DONE, "its logs are on record as well"),
}


def step(table: Table[S, E], state: S, event: E) -> S:
    """Return the state after `event`.

    Raises:
        InvalidTransition: the table holds no such pair; the message lists the events that the state
        accepts.
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
