"""The state machines, one table each: (state, event) → the state that follows, why the edge exists, and
what writes it.

Here stand those of jobs, tasks, attempts, hosts, rented instances, tasks inside their agents, and outputs;
those of runs and nodes in `core/workflows/transitions.py`, of sessions in `core/sessions/transitions.py`,
of webhooks and their deliveries in `core/webhooks/transitions.py`. A call has no table, because a pending
call has no row of its own: its end is written once (CALLSET-1), and `take_call_results` takes it back for a
retry. The CHECK constraints of the tables hold the same states, and `docs/reference/states.md` is drawn
from here.

A pair that is missing raises `InvalidTransition` (`step`). News that may come late, because another move
came first, asks by `step_unless_late`: of a provider about its machine, of a host about outputs that were
settled, of the evidence against a host that is out of service already, and of a person's second pause.

How to think of it. Many places plan, and one writes. `reserve_jobs` alone carries out `reserve` of a
job, with its tasks and its attempt, for each of three plans: the leader's, that of a host's own sync,
and that of a submission that finds a waiting host. Every other edge of a job, a task or an attempt is
decided by the functions of `moves` that its row names, on rows that are locked, and the statement that
is named before them writes it: `write_jobs`, `write_tasks` (`rewrite_tasks` where a member changes its
place), `write_attempts`. `tests/store/test_writers.py` reads the SQL and the moves, and finds no other
place.

What is ugly. `succeed` of a job of one task has a second text, `finish_jobs`, in SQL: it ends hundreds of
such jobs in one statement; `store/postgres/jobs/ends.py` says what that buys and how far it reaches, and
`tests/store/test_agreement.py` holds it to `runs.end_task`. `clear_tasks` deletes the rows of an attempt
that is over, so that the last state of a task is mostly found in its attempt's members alone.

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
                       the guardian has ended it before, by its own clock (LEASE-2); a late report
                       of a good end takes the task through `finish` until the drain is complete
                       (LATE-1); any other is refused, and a refusal, too, means `acknowledge`
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

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
    OutputsEvent,
    OutputsState,
    TaskEvent,
    TaskState,
)
from holdfast.errors import InvalidTransition

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class Transition(NamedTuple, Generic[S]):
    """One edge of a state machine. becomes: the state that follows. because: why the edge exists.
    writer: the statements of the store that write it, and after a colon the functions that decide on
    it, each as module.function; for a machine outside the store, a method."""

    becomes: S
    because: str
    writer: str


Table = Mapping[tuple[S, E], Transition[S]]
_to = Transition  # short, so that a row of a table stands on one line

_RELEASE = "write_jobs: moves.leave_waiting"
_CANCEL = "write_jobs: moves.cancel_idle"
_RESERVE = "reserve_jobs"
_START_JOB = "write_jobs: runs.start_job"
_GIVE_UP = "write_jobs: requests._give_up"
_DRAIN = "write_jobs: drains.begin_drain"
_COMPLETE = "write_jobs: drains.complete_drain"
_SUCCEED = "write_jobs, finish_jobs: runs._succeed"
_REVIVE = "write_jobs: requests.revive"
_J, _JE = JobState, JobEvent
JOB: Table[JobState, JobEvent] = {
    (_J.WAITING, _JE.RELEASE): _to(_J.QUEUED, "its wait is over", _RELEASE),
    (_J.WAITING, _JE.CANCEL): _to(_J.CANCELLED, "nothing runs, so nothing needs a drain", _CANCEL),
    (_J.QUEUED, _JE.RESERVE): _to(
        _J.RESERVED, "a plan gave every task its place, in one transaction", _RESERVE
    ),
    (_J.QUEUED, _JE.CANCEL): _to(_J.CANCELLED, "nothing runs, so nothing needs a drain", _CANCEL),
    (_J.RESERVED, _JE.START): _to(_J.RUNNING, "every task was claimed and started", _START_JOB),
    (_J.RESERVED, _JE.EXPIRE): _to(
        _J.QUEUED,
        "no host was told of it in time, or its host gave it back before it began",
        _GIVE_UP,
    ),
    (_J.RESERVED, _JE.DRAIN): _to(
        _J.DRAINING, "some tasks may have started, so they are stopped together", _DRAIN
    ),
    (_J.RESERVED, _JE.SUCCEED): _to(_J.SUCCEEDED, "it ran and ended between two reports", _SUCCEED),
    (_J.RUNNING, _JE.SUCCEED): _to(_J.SUCCEEDED, "every task is done", _SUCCEED),
    (_J.RUNNING, _JE.DRAIN): _to(
        _J.DRAINING, "a task fell, or a person or a more important job needs its place", _DRAIN
    ),
    (_J.DRAINING, _JE.REQUEUE): _to(
        _J.QUEUED, "the decision was to run it again at once", _COMPLETE
    ),
    (_J.DRAINING, _JE.BACK_OFF): _to(
        _J.WAITING, "the decision was to run it again later", _COMPLETE
    ),
    (_J.DRAINING, _JE.FAIL): _to(_J.FAILED, "the decision was to give up", _COMPLETE),
    (_J.DRAINING, _JE.CANCEL): _to(
        _J.CANCELLED, "a person asked, and every task is confirmed stopped", _COMPLETE
    ),
    (_J.DRAINING, _JE.SUCCEED): _to(
        _J.SUCCEEDED, "every task finished by itself before the stop reached it", _COMPLETE
    ),
    (_J.FAILED, _JE.REVIVE): _to(_J.QUEUED, "a person asked for another attempt", _REVIVE),
    (_J.CANCELLED, _JE.REVIVE): _to(_J.QUEUED, "a person asked for another attempt", _REVIVE),
    (_J.FAILED, _JE.LINE_UP): _to(_J.WAITING, "the same, when its array has room", _REVIVE),
    (_J.CANCELLED, _JE.LINE_UP): _to(_J.WAITING, "the same, when its array has room", _REVIVE),
}

_SEAT = "rewrite_tasks: members.seat_members"
_RELEASE_TASK = "rewrite_tasks, clear_tasks: members.release_unoffered, requests._give_up"
_START_TASK = "write_tasks: runs.start_task, runs._start_late"
_FINISH = "write_tasks, finish_jobs: runs.end_task"
_END_TASK = "write_tasks: runs.end_task"
_FAIL_TASK = "write_tasks: runs._fail_task"
_PREEMPT = "write_tasks, rewrite_tasks: drains.begin_drain, members.stop_member"
_CONFIRM = "write_tasks, rewrite_tasks: runs._confirm_task, drains.begin_drain, members.stop_member"
_RESET = "rewrite_tasks: members.replace_member"
_LATE = (
    "its lease had lapsed, and its host, heard again before the drain was over, told of exit code 0"
)
_T, _TE = TaskState, TaskEvent
TASK: Table[TaskState, TaskEvent] = {
    (_T.BLOCKED, _TE.RESERVE): _to(_T.RESERVED, "admission chose its host", _SEAT),
    (_T.RESERVED, _TE.RELEASE): _to(_T.BLOCKED, "its job expired before it started", _RELEASE_TASK),
    (_T.RESERVED, _TE.START): _to(_T.RUNNING, "its agent reported the process", _START_TASK),
    (_T.RESERVED, _TE.FINISH): _to(_T.DONE, "it started and ended between two reports", _FINISH),
    (_T.RESERVED, _TE.FAIL): _to(
        _T.FAILED, "it could not be started, or ended between two reports", _FAIL_TASK
    ),
    (_T.RESERVED, _TE.PREEMPT): _to(
        _T.PREEMPTING, "the agent may already have started it, so it must confirm", _PREEMPT
    ),
    (_T.RUNNING, _TE.FINISH): _to(_T.DONE, "exit code 0", _FINISH),
    (_T.RUNNING, _TE.FAIL): _to(
        _T.FAILED, "it ended otherwise, tripped, or its lease lapsed", _FAIL_TASK
    ),
    (_T.RUNNING, _TE.PREEMPT): _to(_T.PREEMPTING, "its attempt drains", _PREEMPT),
    (_T.PREEMPTING, _TE.CONFIRM): _to(
        _T.PREEMPTED, "the agent confirmed the end, or the lease did", _CONFIRM
    ),
    (_T.PREEMPTING, _TE.FINISH): _to(
        _T.DONE, "it ended by itself before the signal: its own outcome stands", _END_TASK
    ),
    (_T.PREEMPTING, _TE.FAIL): _to(
        _T.FAILED, "it failed by itself before the signal: its own outcome stands", _FAIL_TASK
    ),
    (_T.FAILED, _TE.FINISH): _to(_T.DONE, _LATE, _END_TASK),
    (_T.PREEMPTED, _TE.FINISH): _to(_T.DONE, _LATE, _END_TASK),
    (_T.PREEMPTED, _TE.RESET): _to(
        _T.BLOCKED, "a member of a supervised job waits for another host", _RESET
    ),
    (_T.FAILED, _TE.RESET): _to(
        _T.BLOCKED, "a member of a supervised job waits for another host", _RESET
    ),
}

_START_ATTEMPT = "write_attempts: runs.start_job"
_DRAIN_ATTEMPT = "write_attempts: drains.begin_drain"
_END_RESERVED = "write_attempts, finish_jobs: runs._succeed, requests._give_up"
_END_RUNNING = "write_attempts, finish_jobs: runs._succeed"
_COMPLETE_ATTEMPT = "write_attempts: drains.complete_drain"
_A, _AE = AttemptState, AttemptEvent
ATTEMPT: Table[AttemptState, AttemptEvent] = {
    (_A.RESERVED, _AE.START): _to(_A.RUNNING, "every task started", _START_ATTEMPT),
    (_A.RESERVED, _AE.DRAIN): _to(
        _A.DRAINING, "stopped before every task had started", _DRAIN_ATTEMPT
    ),
    (_A.RESERVED, _AE.END): _to(
        _A.ENDED, "expired, given back, or over between two reports", _END_RESERVED
    ),
    (_A.RUNNING, _AE.DRAIN): _to(
        _A.DRAINING, "a task fell, or it was told to stop", _DRAIN_ATTEMPT
    ),
    (_A.RUNNING, _AE.END): _to(_A.ENDED, "every task is done", _END_RUNNING),
    (_A.DRAINING, _AE.END): _to(
        _A.ENDED, "every task is confirmed and the decision is written", _COMPLETE_ATTEMPT
    ),
}

_REGISTER = "put_host: registration.register_state, rented.check_registration"
_PASS = "put_host, move_host: registration.register_state, instances.promote_host"
_ASKED = "registration.move_state"
_DRAIN_HOST = f"move_host: {_ASKED}, hosts.give_notice, instances.drain_if_idle"
_UNDRAIN = f"move_host: {_ASKED}"
_LET_BACK = f"move_host: {_ASKED}, health.run_once"
_QUARANTINE = f"move_host: {_ASKED}, health.run_once, acts._set_aside, hosts.quarantine_host"
_FAIL_HOST = "move_host: instances._fail"
_TERMINATE = f"move_host: {_ASKED}, hosts.retire_host, instances._terminate"
_H, _HE = HostState, HostEvent
HOST: Table[HostState, HostEvent] = {
    (_H.SPAWNING, _HE.REGISTER): _to(_H.PREFLIGHT, "its agent called", _REGISTER),
    (_H.SPAWNING, _HE.FAIL): _to(_H.ERROR, "it did not come up in time", _FAIL_HOST),
    (_H.SPAWNING, _HE.TERMINATE): _to(_H.TERMINATED, "no longer wanted", _TERMINATE),
    (_H.PREFLIGHT, _HE.REGISTER): _to(_H.PREFLIGHT, "a new incarnation starts over", _REGISTER),
    (_H.PREFLIGHT, _HE.PASS): _to(_H.ACTIVE, "its checks passed", _PASS),
    (_H.PREFLIGHT, _HE.FAIL): _to(_H.ERROR, "a check failed", _FAIL_HOST),
    (_H.PREFLIGHT, _HE.QUARANTINE): _to(
        _H.QUARANTINED, "an operator or the evidence said so", _QUARANTINE
    ),
    (_H.PREFLIGHT, _HE.TERMINATE): _to(_H.TERMINATED, "no longer wanted", _TERMINATE),
    (_H.ACTIVE, _HE.REGISTER): _to(_H.PREFLIGHT, "a new incarnation is checked again", _REGISTER),
    (_H.ACTIVE, _HE.DRAIN): _to(
        _H.DRAINING, "no new work; running work ends or is drained", _DRAIN_HOST
    ),
    (_H.ACTIVE, _HE.QUARANTINE): _to(
        _H.QUARANTINED, "an operator or the evidence said so", _QUARANTINE
    ),
    (_H.ACTIVE, _HE.TERMINATE): _to(_H.TERMINATED, "gone", _TERMINATE),
    (_H.ACTIVE, _HE.FAIL): _to(
        _H.ERROR, "it fell silent, is stuck, or its machine is gone", _FAIL_HOST
    ),
    (_H.DRAINING, _HE.REGISTER): _to(
        _H.DRAINING, "a restart does not lift an operator's word", _REGISTER
    ),
    (_H.DRAINING, _HE.DRAIN): _to(
        _H.DRAINING,
        "another deadline, or an end to the waiting; asked twice is as asked once",
        _DRAIN_HOST,
    ),
    (_H.DRAINING, _HE.UNDRAIN): _to(_H.ACTIVE, "an operator changed their mind", _UNDRAIN),
    (_H.DRAINING, _HE.QUARANTINE): _to(
        _H.QUARANTINED, "an operator or the evidence said so", _QUARANTINE
    ),
    (_H.DRAINING, _HE.TERMINATE): _to(_H.TERMINATED, "empty, and no longer wanted", _TERMINATE),
    (_H.DRAINING, _HE.FAIL): _to(
        _H.ERROR, "it fell silent, is stuck, or its machine is gone", _FAIL_HOST
    ),
    (_H.QUARANTINED, _HE.REGISTER): _to(
        _H.QUARANTINED, "a restart does not lift a quarantine", _REGISTER
    ),
    (_H.QUARANTINED, _HE.RELEASE): _to(_H.ACTIVE, "an operator let it back", _LET_BACK),
    (_H.QUARANTINED, _HE.TERMINATE): _to(_H.TERMINATED, "given back to its provider", _TERMINATE),
    (_H.QUARANTINED, _HE.FAIL): _to(_H.ERROR, "it fell silent, or its machine is gone", _FAIL_HOST),
    (_H.ERROR, _HE.REGISTER): _to(_H.PREFLIGHT, "it called after all", _REGISTER),
    (_H.ERROR, _HE.TERMINATE): _to(_H.TERMINATED, "given back to its provider", _TERMINATE),
    (_H.TERMINATED, _HE.REGISTER): _to(
        _H.PREFLIGHT, "an owned machine came back under its key", _REGISTER
    ),
}

_ASK = "ask_instance: instances.ask"
_MAKE = "make_instance: instances.note_made"
_END = "end_instance: hosts.end_instance"
_DENY = "end_instance: instances.note_denied"
_MISS = "end_instance: instances.note_denied, cycle._follow"
_VANISH = "end_instance: cycle._follow, forget.forget_pool"
_I, _IE = InstanceState, InstanceEvent
INSTANCE: Table[InstanceState, InstanceEvent] = {
    (_I.INTENDED, _IE.ASK): _to(_I.ASKED, "on record before the provider is asked (RENT-1)", _ASK),
    (_I.INTENDED, _IE.END): _to(_I.GONE, "no longer wanted, and nothing was made", _END),
    (_I.ASKED, _IE.MAKE): _to(_I.MADE, "the provider answered, or a listing showed it", _MAKE),
    (_I.ASKED, _IE.DENY): _to(_I.GONE, "the provider said that it made nothing", _DENY),
    (_I.ASKED, _IE.MISS): _to(_I.GONE, "listings long after the question do not show it", _MISS),
    (_I.ASKED, _IE.END): _to(_I.ENDING, "no longer wanted; a listing may still show it", _END),
    (_I.MADE, _IE.END): _to(_I.ENDING, "no longer wanted, or in error", _END),
    (_I.MADE, _IE.VANISH): _to(_I.GONE, "the provider is believed that it is gone", _VANISH),
    (_I.ENDING, _IE.END): _to(_I.ENDING, "asked twice is as asked once", _END),
    (_I.ENDING, _IE.MAKE): _to(
        _I.ENDING, "its id became known late, and its end is still wanted", _MAKE
    ),
    (_I.ENDING, _IE.MISS): _to(_I.GONE, "listings long after the question do not show it", _MISS),
    (_I.ENDING, _IE.VANISH): _to(_I.GONE, "the provider confirmed its end", _VANISH),
}

_MOVE = "AgentTask.move"
_G, _GE = AgentTaskState, AgentTaskEvent
AGENT_TASK: Table[AgentTaskState, AgentTaskEvent] = {
    (_G.ORDERED, _GE.FETCH): _to(_G.FETCHING, "it starts from a checkpoint (SAVE-3)", _MOVE),
    (_G.ORDERED, _GE.LAUNCH): _to(_G.LAUNCHED, "it starts from nothing", _MOVE),
    (_G.ORDERED, _GE.GIVE_UP): _to(
        _G.REPORTED, "it cannot be started here, or was stopped or given back before", _MOVE
    ),
    (_G.FETCHING, _GE.LAUNCH): _to(_G.LAUNCHED, "its checkpoint is here", _MOVE),
    (_G.FETCHING, _GE.GIVE_UP): _to(
        _G.REPORTED, "its checkpoint cannot be had, or it was stopped", _MOVE
    ),
    (_G.ORDERED, _GE.SALVAGE): _to(
        _G.ACKNOWLEDGED, "no guardian holds it: only its logs are left", _MOVE
    ),
    (_G.LAUNCHED, _GE.RUN): _to(
        _G.RUNNING, "its process, or its container's first one, is there", _MOVE
    ),
    (_G.LAUNCHED, _GE.END): _to(_G.ENDING, "it could not be started, or is over already", _MOVE),
    (_G.LAUNCHED, _GE.GIVE_UP): _to(_G.REPORTED, "the guardian does not hold it", _MOVE),
    (_G.RUNNING, _GE.END): _to(_G.ENDING, "its whole tree is gone", _MOVE),
    (_G.RUNNING, _GE.GIVE_UP): _to(_G.REPORTED, "the guardian does not hold it any more", _MOVE),
    (_G.ENDING, _GE.SAVE): _to(
        _G.SAVING, "it left checkpoints for the next attempt (SAVE-1)", _MOVE
    ),
    (_G.ENDING, _GE.REPORT): _to(
        _G.REPORTED, "all is known, and nothing has to be uploaded", _MOVE
    ),
    (_G.SAVING, _GE.REPORT): _to(_G.REPORTED, "they are uploaded, or the wait is over", _MOVE),
    (_G.REPORTED, _GE.ACKNOWLEDGE): _to(
        _G.ACKNOWLEDGED, "the controller has its end, or never will", _MOVE
    ),
    (_G.ACKNOWLEDGED, _GE.FORGET): _to(_G.DONE, "its logs are on record as well", _MOVE),
}


_PUT, _SETTLE = "put_outputs: outputs.put_outputs", "settle_outputs: outputs._settle"
_O, _OE = OutputsState, OutputsEvent
OUTPUTS: Table[OutputsState, OutputsEvent] = {
    (_O.COLLECTING, _OE.SEND): Transition(_O.COLLECTING, "its host sent what it has so far", _PUT),
    (_O.COLLECTING, _OE.FINISH): Transition(_O.COMPLETE, "all is kept", _PUT),
    (_O.COLLECTING, _OE.CUT): Transition(_O.PARTIAL, "something was left out", _PUT),
    (_O.COLLECTING, _OE.LOSE): Transition(
        _O.PARTIAL, "its host is lost, and a part had been sent", _SETTLE
    ),
    (_O.COLLECTING, _OE.MISS): Transition(
        _O.LOST, "its host is lost, and nothing had been sent", _SETTLE
    ),
    (_O.PARTIAL, _OE.FINISH): Transition(_O.COMPLETE, "its host came back with the rest", _PUT),
    (_O.PARTIAL, _OE.CUT): Transition(_O.PARTIAL, "its host came back", _PUT),
    (_O.LOST, _OE.FINISH): Transition(_O.COMPLETE, "its host came back with all of it", _PUT),
    (_O.LOST, _OE.CUT): Transition(_O.PARTIAL, "its host came back with a part", _PUT),
}


def step(table: Table[S, E], state: S, event: E) -> S:
    """Return the state after `event`.

    Raises:
        InvalidTransition: the table holds no such pair; the message lists the events that the state
        accepts.
    """
    try:
        return table[state, event].becomes
    except KeyError:
        accepted = sorted(str(e) for s, e in table if s == state) or ["nothing: the state is final"]
        raise InvalidTransition(
            f"{type(state).__name__} {state} does not take {event}; it takes {', '.join(accepted)}"
        ) from None


def step_unless_late(table: Table[S, E], state: S, event: E) -> S | None:
    """Return the state after `event`; None where the state does not take it, because another move came
    first, and the event is news that changes nothing any more."""
    return table[state, event].becomes if (state, event) in table else None


def sources(table: Table[S, E], event: E) -> frozenset[S]:
    """Return the states that accept `event`: the guard of the update that carries the edge out."""
    return frozenset(s for s, e in table if e == event)
