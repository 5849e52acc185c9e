"""Decide which instructions a sync answer has for this host, from what the host knows. Pure.

`Commands` carries the instructions out. The controller repeats each command until the host reports
its effect, so that every answer is decided anew, and a command whose effect is there already
becomes no instruction.

CMD-1  A launch is done once per key; one that comes after a stop or an end of the same key is
       refused, and the controller is told that the key has ended.
CMD-2  The lease of a launch or a renewal counts from the start of the sync call that brought it.
       If that call is so old that the lease is over (the agent was frozen), the launch is not done;
       the controller offers it again.
CMD-3  A stop for a task that is not known here is answered at once with the end of a stopped task,
       because no later launch of that key will run (CMD-1).
"""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.agent.tasks.table import is_job_id
from holdfast.core.causes import Watchdog
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.lease import host_deadline
from holdfast.core.settings.watch import WatchSettings
from holdfast.core.states import AgentTaskState
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.wire.agent import ClaimOrder, LaunchOrder, PreemptOrder, SyncAnswer

_BURIED = "this attempt had ended here already, and the controller does not know it any more (a restored database?)"
_WATCHED = (AgentTaskState.RUNNING, AgentTaskState.SAVING)  # the runner ticks the watch of these


class KnownTask(msgspec.Struct, frozen=True, kw_only=True):
    """A task as the agent knows it.

    tripped: True once a watchdog has decided to end it. stop_asked: True once a stop was sent to
    it. stop_grace: the seconds of grace of that stop; None before it.
    """

    state: AgentTaskState
    tripped: bool = False
    stop_asked: bool = False
    stop_grace: float | None = None


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """The agent's knowledge of the keys that an answer names.

    buried: keys whose tasks have ended here and are forgotten. places: keys of gang ranks for
    which a place is kept. closing: True once this host starts no more tasks.
    """

    tasks: Mapping[TaskKey, KnownTask]
    buried: frozenset[TaskKey] = frozenset()
    places: frozenset[TaskKey] = frozenset()
    closing: bool = False


class Begin(msgspec.Struct, frozen=True):
    """Launch a task; its lease ends at `deadline` (CLOCK_BOOTTIME)."""

    order: LaunchOrder
    deadline: float


class LetBeOffered(msgspec.Struct, frozen=True):
    """Do not launch a task until the controller offers it again, because the lease in its order is
    over (CMD-2)."""

    order: LaunchOrder


class TellEnd(msgspec.Struct, frozen=True):
    """Report the end of a task that is not here."""

    key: TaskKey
    facts: TaskFacts


class ForgetEnds(msgspec.Struct, frozen=True):
    """Forget ended tasks, because the controller has recorded their ends or has refused them for
    good."""

    keys: tuple[TaskKey, ...]


class Prolong(msgspec.Struct, frozen=True):
    """Move the deadlines of kept places and live tasks later."""

    deadlines: tuple[tuple[TaskKey, float], ...]


class KeepPlace(msgspec.Struct, frozen=True):
    """Keep a place for a rank of a gang (GANG-1)."""

    order: ClaimOrder
    deadline: float


class DropPlace(msgspec.Struct, frozen=True):
    """Forget the place of a rank, if one is kept."""

    key: TaskKey


class StopOne(msgspec.Struct, frozen=True, kw_only=True):
    """Stop a task. begun: False if the task is still fetching its input, so that only its start
    is cancelled. why: the reason for the log."""

    key: TaskKey
    grace_seconds: float
    why: str
    begun: bool = True


class TripByOperator(msgspec.Struct, frozen=True):
    """Record an operator's stop as the task's trip. tick: True if the task's watch has to decide
    now, because the runner does not tick it."""

    key: TaskKey
    reason: str
    tick: bool


class LetUploadsGo(msgspec.Struct, frozen=True):
    """Report the end of a task without waiting for its uploads."""

    key: TaskKey


class LoseLease(msgspec.Struct, frozen=True, kw_only=True):
    """End a task that the controller does not know on this host.

    tick: True if the task's watch has to decide now, because the runner does not tick it. begun:
    True if there is a process to kill. watched: True if the runner of watches kills it, after it
    has looked at its processes.
    """

    key: TaskKey
    tick: bool
    begun: bool
    watched: bool


class ChangeWatch(msgspec.Struct, frozen=True):
    """Watch a task by other settings from now on."""

    key: TaskKey
    settings: WatchSettings


Instruction = (
    Begin | LetBeOffered | TellEnd | ForgetEnds | Prolong | KeepPlace | DropPlace | StopOne
    | TripByOperator | LetUploadsGo | LoseLease | ChangeWatch
)  # fmt: skip


class Instructions(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions of one answer, in the order in which they are carried out.

    ranks: launches of gang ranks, which go first, because the launch of a gang's next attempt
    comes with the ends of its last; and one by one, because idle cores begin with the first while
    others are prepared. settled: ended tasks to forget, leases to renew and tasks to end. stops,
    launches: each sent to the guardian in one write. watches: changes of watch settings. news:
    True if any part of the answer was new.
    """

    ranks: Sequence[Instruction] = ()
    settled: Sequence[Instruction] = ()
    stops: Sequence[Instruction] = ()
    launches: Sequence[Instruction] = ()
    watches: Sequence[Instruction] = ()
    news: bool = False


def decide_answer(
    answer: SyncAnswer, known: Known, *, started_at: float, now: float, newest: bool
) -> Instructions:
    """Decide which instructions an answer has for this host (SYNC-1). started_at: the instant at
    which its sync call began (CLOCK_BOOTTIME). newest: False if a later call was answered
    before."""
    deciding = _Deciding(known, started_at, now)
    ranks = [
        each
        for o in answer.launch
        if newest and o.local_world_size > 1
        for each in deciding.launch(o)
    ]
    settled = deciding.settle([*answer.acked, *(refused.key for refused in answer.refused)])
    deadlines = tuple((r.key, host_deadline(started_at, r.ttl_seconds)) for r in answer.renewed)
    settled += [Prolong(deadlines)] if deadlines else []
    if not newest:
        return Instructions(settled=settled, news=deciding.news)
    settled += [each for key in answer.lost for each in deciding.lose(key)]
    stops = [each for order in answer.preempt for each in deciding.stop(order)]
    launches: list[Instruction] = [p for c in answer.claim for p in deciding.keep_place(c)]
    alone = (o for order in answer.launch if order.local_world_size == 1 for o in order.list_all())
    launches += [each for order in alone for each in deciding.launch(order)]
    watches = [ChangeWatch(change.key, change.watch) for change in answer.watch]
    return Instructions(
        ranks=ranks,
        settled=settled,
        stops=stops,
        launches=launches,
        watches=watches,
        news=deciding.news or bool(watches),
    )


def decide_fall(
    others: Iterable[tuple[TaskKey, KnownTask, float]], fallen: int
) -> list[Instruction]:
    """Stop the other ranks of an attempt that falls as one (FALL-1), each with its own grace.
    fallen: the rank that fell. The controller's order to stop them comes later and finds it
    done."""
    why = f"rank {fallen} has fallen"
    return [
        StopOne(key=key, grace_seconds=grace, why=why, begun=_has_begun(task))
        for key, task, grace in others
        if task.state.live and not task.state.end_heard and not task.stop_asked
    ]


class _Deciding:
    """Decides the parts of one answer. A part that is decided changes the knowledge on which the
    later parts are decided."""

    def __init__(self, known: Known, started_at: float, now: float) -> None:
        self._known = known
        self._tasks = dict(known.tasks)
        self._started_at = started_at
        self._now = now
        self.news = False

    def settle(self, keys: Sequence[TaskKey]) -> list[Instruction]:
        told = (AgentTaskState.REPORTED,)
        ended = tuple(k for k in keys if (t := self._tasks.get(k)) and t.state in told)
        for key in ended:
            self._tasks[key] = KnownTask(state=AgentTaskState.ACKNOWLEDGED)
        self.news = self.news or bool(ended)
        return [ForgetEnds(ended)] if ended else []

    def keep_place(self, order: ClaimOrder) -> list[Instruction]:
        deadline = host_deadline(self._started_at, order.ttl_seconds)
        here = order.key in self._tasks or order.key in self._known.buried
        if here or self._known.closing or deadline <= self._now:
            return []
        self.news = self.news or order.key not in self._known.places
        return [KeepPlace(order, deadline)]

    def launch(self, order: LaunchOrder) -> list[Instruction]:
        key = order.key
        if key in self._tasks:
            return []
        found: list[Instruction] = [DropPlace(key)]
        if key in self._known.buried:  # else it is offered for ever, and its job stays reserved
            trip = make_trip(Watchdog.LOST_LEASE, _BURIED, {"source": "a launch of an ended task"})
            return [*found, *self._tell_end(key, TaskFacts(trip=trip))]
        if self._known.closing:
            return found
        deadline = host_deadline(self._started_at, order.ttl_seconds)
        if deadline <= self._now:
            return [*found, LetBeOffered(order)]
        self._tasks[key] = KnownTask(state=AgentTaskState.ORDERED)
        self.news = True
        return [*found, Begin(order, deadline)]

    def stop(self, order: PreemptOrder) -> list[Instruction]:
        key, task = order.key, self._tasks.get(order.key)
        found: list[Instruction] = [DropPlace(key)]
        if task is None:
            return [*found, *self._tell_end(key, TaskFacts(stopped=True))]
        if not task.state.live:
            return found
        grace_seconds = 0.0 if order.hard else order.grace_seconds
        sooner = task.stop_grace is None or grace_seconds < task.stop_grace
        if task.stop_asked and not sooner:
            return found
        if order.operator_stop:
            reason = order.reason or str(order.cause)
            found.append(TripByOperator(key, reason, task.state not in _WATCHED))
        begun, why = _has_begun(task), f"{order.cause}: {order.reason}"
        found.append(StopOne(key=key, grace_seconds=grace_seconds, why=why, begun=begun))
        if order.hard and begun:
            found.append(LetUploadsGo(key))
        state = task.state if begun else AgentTaskState.REPORTED
        self._tasks[key] = KnownTask(
            state=state, tripped=task.tripped, stop_asked=True, stop_grace=grace_seconds
        )
        self.news = True
        return found

    def lose(self, key: TaskKey) -> list[Instruction]:
        task = self._tasks.get(key)
        found: list[Instruction] = [DropPlace(key)]
        if task is None or not task.state.live or task.tripped:
            return found
        self.news = True
        if task.state is AgentTaskState.SAVING:
            return [*found, LetUploadsGo(key)]  # the controller will not take its checkpoints
        watched = task.state is AgentTaskState.RUNNING
        begun = _has_begun(task)
        state = task.state if begun else AgentTaskState.REPORTED
        self._tasks[key] = msgspec.structs.replace(task, state=state, tripped=True)
        return [*found, LoseLease(key=key, tick=not watched, begun=begun, watched=watched)]

    def _tell_end(self, key: TaskKey, facts: TaskFacts) -> list[Instruction]:
        """Report an end; do nothing for a key that is no id, because the controller could not
        read its report."""
        if not is_job_id(key.job_id):
            return []
        self._tasks[key] = KnownTask(state=AgentTaskState.REPORTED)
        self.news = True
        return [TellEnd(key, facts)]


def _has_begun(task: KnownTask) -> bool:
    return task.state is not AgentTaskState.FETCHING
