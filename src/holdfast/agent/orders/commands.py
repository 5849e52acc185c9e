"""Carry out the instructions that `decide` makes of sync answers, on the tasks of this host."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.journal import about
from holdfast.agent.link import GuardianLink
from holdfast.agent.orders import decide
from holdfast.agent.orders.claims import Claims
from holdfast.agent.orders.launches import Launcher
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.checkpoints import CheckpointTransfers
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.watch.runner import WatchRunner
from holdfast.agent.watch.stop_words import leave_word
from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import SyncAnswer

log = logging.getLogger("holdfast.agent.orders.commands")


@dataclass(eq=False)
class Commands:
    """Carries out sync answers.

    keeper: the housekeeper, which forgets a task once its end is on record. closing: True once
    this host starts no more tasks. settings_rev: the revision of the settings that the tasks are
    watched by. settings_changed: called when another revision is heard of.
    """

    table: TaskTable
    link: GuardianLink
    launcher: Launcher
    claims: Claims
    checkpoints: CheckpointTransfers
    watching: WatchRunner
    keeper: Housekeeper
    news: SyncWish
    closing: bool = False
    settings_rev: int = 0
    settings_changed: Callable[[], None] = lambda: None
    _unsaid: list[tuple[AgentTask, str]] = field(default_factory=list)

    def carry_out(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """Carry out an answer (SYNC-1). Return True if any part of the answer was new."""
        now, known = read_boottime(), self._look(answer)
        found = decide.decide_answer(answer, known, started_at=started_at, now=now, newest=newest)
        if newest:
            self.launcher.learn(answer.gangs)
        self._do(found.ranks)
        orders = [*found.settled, *found.stops]
        if found.stops:  # they go before launches are made, which takes longest
            with self.link.together():
                self._do(orders)
            self._save_stops()
            orders = []
        with self.link.together():
            self._do([*orders, *found.launches])
        self.launcher.log_launches()
        self._do(found.watches)
        if newest:
            if self.settings_rev not in (0, answer.settings_rev):
                self.settings_changed()
            self.settings_rev = answer.settings_rev
        return found.news

    def show_settings_rev(self) -> int:
        """Return the revision of the settings that this host's tasks are watched by."""
        return self.settings_rev

    def stop_others(self, fallen: AgentTask) -> None:
        """Stop the other ranks of an attempt that falls as one (FALL-1)."""
        others = [
            (task.key, _describe(task), task.watch.settings.grace_seconds)
            for task in self.table.list_others(fallen)
        ]
        with self.link.together():
            self._do(decide.decide_fall(others, fallen.key.rank))
        self._save_stops()

    def stop_fetches(self) -> None:
        """End every task that is still fetching its input, because this host starts no more
        tasks."""
        for task in self.table:
            if task.state is AgentTaskState.FETCHING:
                self._give_start_up(task, TaskFacts(stopped=True, stop_cause=Cause.HOST_DRAINED))

    def give_up_unheld(self, task: AgentTask) -> None:
        """Report a task that the guardian was told to launch and does not know, as a failure of
        the host."""
        sentence = "the guardian does not hold it, though it was told to launch it"
        self.launcher.fail(task.key, sentence)

    def _look(self, answer: SyncAnswer) -> decide.Known:
        """Return the state of each task key that an answer names, as far as this agent knows it."""
        named = {
            *answer.acked, *answer.lost, *(each.key for each in answer.refused), *(each.key for each in answer.preempt),
            *(each.key for each in answer.claim), *(one.key for each in answer.launch for one in each.list_all()),
        }  # fmt: skip
        tasks = {key: _describe(task) for key in named if (task := self.table.get(key))}
        return decide.Known(
            tasks=tasks,
            buried=frozenset(key for key in named if self.table.is_buried(key)),
            places=frozenset(key for key in named if key in self.claims),
            closing=self.closing,
        )

    def _do(self, instructions: Iterable[decide.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case decide.Begin(order, deadline):
                    self.launcher.begin(order, deadline)
                case decide.LetBeOffered(order):
                    late = "a launch came when its lease was over; it will be offered again"
                    log.warning(late, extra=about(order.key, attempt=order.attempt))
                case decide.TellEnd(key, facts):
                    if facts.trip is not None:
                        over = "a launch came after the task's end; it is reported as lost"
                        log.error(over, extra=about(key))
                    else:
                        log.info("told to stop a task that never came here", extra=about(key))
                    self.launcher.tell_end(key, facts)
                case decide.ForgetEnds(keys):
                    self._forget(keys)
                case decide.Prolong(deadlines):
                    self._prolong(deadlines)
                case decide.KeepPlace(claim, deadline):
                    if self.claims.keep(claim, deadline, read_boottime()):
                        self.news.report()
                case decide.DropPlace(key):
                    self.claims.drop(key)
                case decide.LetUploadsGo(key):
                    self.checkpoints.let_go(key)
                case _:
                    self._do_to_known(instruction)

    def _do_to_known(self, instruction: decide.Instruction) -> None:
        """Carry out an instruction on a task of this host; do nothing if the task is not here."""
        assert isinstance(
            instruction,
            decide.StopOne | decide.TripByOperator | decide.LoseLease | decide.ChangeWatch,
        )
        task = self.table.get(instruction.key)
        if task is None:
            return
        match instruction:
            case decide.StopOne():
                self._stop(task, instruction)
            case decide.TripByOperator(_, reason, tick):
                task.watch.stop_by_operator(read_boottime(), reason)
                self._decide_watch(task, tick=tick)
            case decide.LoseLease():
                self._lose(task, instruction)
            case decide.ChangeWatch(_, settings):
                task.watch.change_settings(read_boottime(), settings)
                self.watching.poke()

    def _forget(self, keys: Sequence[TaskKey]) -> None:
        """Have the guardian and this agent forget ended tasks."""
        self.link.ack(list(keys))
        for key in keys:
            if (task := self.table.get(key)) is not None:
                task.move(AgentTaskEvent.ACKNOWLEDGE)
                self.keeper.forget_recorded(task)

    def _prolong(self, deadlines: Sequence[tuple[TaskKey, float]]) -> None:
        live = []
        for key, deadline in deadlines:
            self.claims.extend(key, deadline)
            task = self.table.get(key)
            if task is not None and task.live:
                task.deadline = max(task.deadline, deadline)
                live.append((key, deadline))
        self.link.extend(live)

    def _stop(self, task: AgentTask, stop: decide.StopOne) -> None:
        task.saved.stop_asked = True
        task.stop_grace = stop.grace_seconds
        self._unsaid.append((task, stop.why))
        if stop.begun:
            self.link.stop(task.key, stop.grace_seconds)
            task.dirty = True
        else:
            self._give_start_up(task, TaskFacts(stopped=True, trip=task.watch.trip))

    def _save_stops(self) -> None:
        """Save the stops and log their reasons after the guardian was told of all, because a
        slow disk must delay no stop."""
        said, self._unsaid = self._unsaid, []
        for task, why in said:
            leave_word(task, why, read_boottime() + (task.stop_grace or 0.0))
        for task, why in said:
            log.info(f"stopping: {why}", extra=task.about(grace_seconds=task.stop_grace))
        for task, _ in said:
            self.table.save_changed(task, read_boottime())

    def _lose(self, task: AgentTask, lost: decide.LoseLease) -> None:
        task.watch.lease_lost(read_boottime())
        self._decide_watch(task, tick=lost.tick)
        if not lost.begun:
            self._give_start_up(task, TaskFacts(trip=task.watch.trip))
        elif not lost.watched:
            task.saved.kill_sent = True
            self.link.stop(task.key, 0.0)

    def _decide_watch(self, task: AgentTask, *, tick: bool) -> None:
        """Have a task's watch decide now. tick: True if the runner does not tick this watch,
        because the task's program does not run."""
        if tick:
            task.watch.tick(read_boottime())
        self.watching.poke()

    def _give_start_up(self, task: AgentTask, facts: TaskFacts) -> None:
        """End the start of a task that is still fetching its checkpoint."""
        self.table.works.stop(task.key)
        self.launcher.give_up(task, facts)


def _describe(task: AgentTask) -> decide.KnownTask:
    return decide.KnownTask(
        state=task.state,
        tripped=task.watch.trip is not None,
        stop_asked=task.saved.stop_asked,
        stop_grace=task.stop_grace,
    )
