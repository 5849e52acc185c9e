"""The controller's commands carried out, each idempotent, because all of them repeat until their
effect is reported.

CMD-1  A launch is done once per key; one that comes after a stop or an end of the same key is
       refused, and the controller told that the key is over.
CMD-2  A launch or a renewal counts from the start of the call that brought it. Where that call is
       so old that the lease it grants is over (the agent was frozen), the launch is not done; the
       controller offers it again.
CMD-3  A stop for a task that is not known here is answered at once: ended, stopped. Nothing of it
       will run (CMD-1).
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.agent.abilities import Hindrances
from holdfast.agent.containers.desk import ContainerDesk
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.journal import about
from holdfast.agent.orders.claims import Claims
from holdfast.agent.orders.launches import TaskPlaces, make_launch
from holdfast.agent.orders.link import GuardianLink
from holdfast.agent.orders.peers import GangPeers, Peers, find_peers
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.agent.uplink.checkpoints import CheckpointDesk
from holdfast.agent.uplink.logs import LogShipper
from holdfast.agent.uplink.news import News
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.lease import host_deadline
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.errors import ValidationError
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import ClaimOrder, LaunchOrder, PreemptOrder, Renewed, SyncAnswer
from holdfast.wire.guardian import LaunchTask

log = logging.getLogger("holdfast.agent.orders.commands")


@dataclass(eq=False)
class Commands:
    """Carries out sync answers.

    shipper: follows the logs of each task, whether it runs or is over already. keeper: forgets a task
    whose end is on record. hindrances: takes what this host lacked for a start.
    """

    table: TaskTable
    link: GuardianLink
    places: TaskPlaces
    containers: ContainerDesk
    checkpoints: CheckpointDesk
    shipper: LogShipper
    watching: WatchRunner
    keeper: Housekeeper
    hindrances: Hindrances
    news: News
    claims: Claims = field(default_factory=Claims)
    host_id: str = ""
    host_gpus: int = 0
    device_words: dict[int, str] = field(default_factory=dict)
    closing: bool = False  # this host starts nothing any more
    settings_rev: int = 0
    _peers: GangPeers = field(default_factory=GangPeers)
    _unlogged: list[AgentTask] = field(default_factory=list)
    _unsaid: list[tuple[AgentTask, str]] = field(default_factory=list)

    def carry_out(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """Carry out an answer (SYNC-1). True when any of it was new."""
        news = False
        if newest:
            self._peers.learn(answer.gangs)
            # Ranks of a gang go first, because with the ends of a fall comes its next start; and one
            # by one: idle cores begin with the first while others are prepared.
            for rank in (order for order in answer.launch if order.local_world_size > 1):
                news = self._launch(rank, started_at) or news
        keys = [*answer.acked, *(refused.key for refused in answer.refused)]
        news = self._settle(keys) or news
        self._renew(answer.renewed, started_at)
        if not newest:
            return news
        for key in answer.lost:
            news = self._lose(key) or news
        with self.link.together():
            for preempt in answer.preempt:
                news = self._preempt(preempt) or news
        self._save_stops(self.table.get(preempt.key) for preempt in answer.preempt)
        for claim in answer.claim:
            news = self._claim(claim, started_at) or news
        with self.link.together():
            for order in (order for order in answer.launch if order.local_world_size == 1):
                for one in order.list_all():
                    news = self._launch(one, started_at) or news
        self._log_launches()
        for change in answer.watch:
            task = self.table.get(change.key)
            if task is not None:
                task.watch.change_settings(read_boottime(), change.watch)
                self.watching.poke()
        self.settings_rev = answer.settings_rev
        return news or bool(answer.watch)

    def show_settings_rev(self) -> int:
        """Return the revision of the settings that its tasks are watched by."""
        return self.settings_rev

    def _settle(self, keys: list[TaskKey]) -> bool:
        """Have the guardian and this agent forget ends that are on record, or never will be."""
        settled = [
            task
            for key in keys
            if (task := self.table.get(key)) and task.state is AgentTaskState.REPORTED
        ]
        self.link.ack([task.key for task in settled])
        for task in settled:
            task.move(AgentTaskEvent.ACKNOWLEDGE)
            self.keeper.settle(task)
        return bool(settled)

    def _renew(self, renewed: Sequence[Renewed], started_at: float) -> None:
        """Move the deadlines of claims and live tasks later (CMD-2)."""
        live = []
        for item in renewed:
            deadline = host_deadline(started_at, item.ttl_seconds)
            self.claims.extend(item.key, deadline)
            task = self.table.get(item.key)
            if task is not None and task.live:
                task.deadline = max(task.deadline, deadline)
                live.append((item.key, deadline))
        self.link.extend(live)

    # ---- starts

    def _claim(self, order: ClaimOrder, started_at: float) -> bool:
        key, now = order.key, read_boottime()
        deadline = host_deadline(started_at, order.ttl_seconds)
        known = self.table.get(key) is not None or self.table.is_buried(key)
        if self.closing or known or deadline <= now or not self.claims.keep(order, deadline, now):
            return False
        self.news.report()
        return True

    def _launch(self, order: LaunchOrder, started_at: float) -> bool:
        key = order.key
        if self.table.get(key) is not None:
            return False
        self.claims.drop(key)
        if self.table.is_buried(key):
            return self._refuse_buried(order)
        if self.closing:
            return False
        now = read_boottime()
        deadline = host_deadline(started_at, order.ttl_seconds)
        if deadline <= now:
            log.warning(
                f"a launch came {now - started_at:.0f} s after it was asked for, its lease over; "
                "it will be offered again",
                extra=about(key, attempt=order.attempt),
            )
            return False
        try:
            self._start(order, deadline, now)
        except OSError as error:
            self.hindrances.note_start(f"it cannot prepare tasks: {error}")
            self._fail_start(key, str(error))
        except ValidationError as error:
            self._fail_start(key, str(error))
        return True

    def _refuse_buried(self, order: LaunchOrder) -> bool:
        """CMD-1. The controller has forgotten an end it had acknowledged: its database went back in
        time. It is told again that this key is over, or it would offer it for ever and the job
        would stay reserved."""
        key = order.key
        log.error(
            "a launch came after the task's end; it is reported as lost",
            extra=about(key, attempt=order.attempt),
        )
        reason = (
            "this attempt had ended here already, and the controller does not know it any more "
            "(a restored database?)"
        )
        trip = make_trip(Watchdog.LOST_LEASE, reason, {"source": "a launch of an ended task"})
        return self._end_unknown(key, TaskFacts(trip=trip))

    def _start(self, order: LaunchOrder, deadline: float, now: float) -> None:
        if not order.master_port:
            order = msgspec.structs.replace(order, master_port=self._find_port(order, now))
        task = self.table.add(msgspec.structs.replace(order, peers=[]), now)
        peers = self._peers.leave(order, task.folder)
        task.deadline = deadline
        if not order.fetches:
            self._start_task(task, order, peers)
        else:
            task.move(AgentTaskEvent.FETCH)
            self.table.works.begin(task.key, self._fetch_and_start(task, order))

    def _find_port(self, order: LaunchOrder, now: float) -> int:
        """A port for a rendezvous on this host alone: that of the gang's other ranks, whichever
        agent launched them; of one task with itself."""
        mine = (order.key.job_id, order.key.epoch)
        if order.world_size > 1:
            for task in self.table:
                same = (task.key.job_id, task.key.epoch) == mine
                if same and task.order is not None and task.order.master_port:
                    return task.order.master_port
        return self.claims.ports.find(now)

    async def _fetch_and_start(self, task: AgentTask, order: LaunchOrder) -> None:
        """Start a task once its input and its checkpoint are here, or report why they cannot be had
        (SAVE-3)."""
        missing = await self.checkpoints.fetch_input(task)
        if missing is not None:
            log.error(f"the task is not started: {missing}", extra=task.about())
            self._give_up(task, TaskFacts(start_error=missing[:4096]))
            return
        error = await self.checkpoints.fetch(task)
        if error is not None:
            log.error(
                f"the task is not started: its checkpoint cannot be had: {error}",
                extra=task.about(),
            )
            self._give_up(task, TaskFacts(checkpoint_error=error[:4096]))
            return
        self._start_or_fail(task, task.order or order)  # `task.order` names what was fetched

    def _start_or_fail(self, task: AgentTask, order: LaunchOrder) -> None:
        """Start a task, or report that it could not be prepared."""
        try:
            peers = find_peers(task.folder) if order.world_size > 1 else None
            self._start_task(task, order, peers)
        except OSError as error:
            self.hindrances.note_start(f"it cannot prepare tasks: {error}")
            self._fail_start(task.key, str(error))
        except ValidationError as error:
            self._fail_start(task.key, str(error))
        self._log_launches()

    def _start_task(self, task: AgentTask, order: LaunchOrder, peers: Peers | None) -> None:
        launch = self._make_launch(task, order, peers)
        if isinstance(launch, str):
            log.error(f"the task cannot be started: {launch}", extra=task.about())
            self._give_up(task, TaskFacts(start_error=launch[:4096]))
        else:
            self.link.launch(launch)
            self._note_launch(task)

    def _make_launch(
        self, task: AgentTask, order: LaunchOrder, peers: Peers | None = None
    ) -> LaunchTask | str:
        return make_launch(
            task,
            order,
            self.places,
            self.containers,
            host_id=self.host_id,
            host_gpus=self.host_gpus,
            device_words=self.device_words,
            peers=peers,
        )

    def _note_launch(self, task: AgentTask) -> None:
        task.move(AgentTaskEvent.LAUNCH)
        self._unlogged.append(task)
        self.shipper.follow(task)

    def _log_launches(self) -> None:
        """Write them to the journal, after the guardian was told: it has a task to start."""
        for task in self._unlogged:
            name = task.order.name if task.order else ""
            log.info(f"launching {name}", extra=task.about())
        self._unlogged.clear()

    # ---- ends of tasks that never began

    def _give_up(self, task: AgentTask, facts: TaskFacts) -> None:
        task.end(AgentTaskEvent.GIVE_UP, facts)
        self.shipper.follow(task)  # its logs, too, must be known to have ended
        self.news.report()

    def _end_unknown(self, key: TaskKey, facts: TaskFacts) -> bool:
        """Report the end of a task that is not known here. False for a key that is no id: the
        controller would not understand a report of it."""
        try:
            task = self.table.add_stub(key, read_boottime())
        except ValidationError:
            return False
        self._give_up(task, facts)
        return True

    def _fail_start(self, key: TaskKey, sentence: str) -> None:
        log.error(f"the task could not be prepared: {sentence}", extra=about(key))
        # A full disk is the host's failure: `start_error` alone would charge it to the job.
        lost = f"it could not prepare the task: {sentence}"[:4096]
        facts = TaskFacts(start_error=sentence[:4096], lost=lost)
        task = self.table.get(key)
        if task is None:
            self._end_unknown(key, facts)
        else:
            self._give_up(task, facts)

    def give_up_unheld(self, task: AgentTask) -> None:
        """Report a task that the guardian should hold and does not: the host's failure."""
        self._fail_start(task.key, "the guardian does not hold it, though it was told to launch it")

    def stop_fetches(self) -> None:
        """End every task that is not launched yet: this host starts nothing any more."""
        for task in self.table:
            self._stop_fetch(task, TaskFacts(stopped=True, stop_cause=Cause.HOST_DRAINED))

    def _stop_fetch(self, task: AgentTask, facts: TaskFacts) -> bool:
        """End a task whose checkpoint is still fetched. False for another."""
        if task.state is not AgentTaskState.FETCHING:
            return False
        self.table.works.stop(task.key)
        self._give_up(task, facts)
        return True

    # ---- stops

    def _preempt(self, order: PreemptOrder) -> bool:
        self.claims.drop(order.key)
        task = self.table.get(order.key)
        if task is None:
            log.info("told to stop a task that never came here", extra=about(order.key))
            return self._end_unknown(order.key, TaskFacts(stopped=True))
        if not task.live:
            return False
        grace_seconds = 0.0 if order.hard else order.grace_seconds
        sooner = task.stop_grace is None or grace_seconds < task.stop_grace
        if task.saved.stop_asked and not sooner:
            return False
        if order.operator_stop:
            task.watch.stop_by_operator(read_boottime(), order.reason or str(order.cause))
            self._tick_unwatched(task)
            self.watching.poke()
        if self._stop(task, grace_seconds, f"{order.cause}: {order.reason}") and order.hard:
            self.checkpoints.let_go(order.key)
        return True

    def stop_others(self, fallen: AgentTask) -> None:
        """Stop the other ranks of an attempt that falls as one (FALL-1). The controller's own order
        to do so, which comes later, finds it done."""
        found = [
            task
            for task in self.table.list_others(fallen)
            if not task.state.end_heard and task.live and not task.saved.stop_asked
        ]
        with self.link.together():
            for task in found:
                grace_seconds = task.watch.settings.grace_seconds
                self._stop(task, grace_seconds, f"rank {fallen.key.rank} has fallen")
        self._save_stops(found)

    def _stop(self, task: AgentTask, grace_seconds: float, why: str) -> bool:
        """Have a task stopped. False where there was only a start to give up."""
        task.saved.stop_asked = True
        task.stop_grace = grace_seconds
        self._unsaid.append((task, why))
        if self._stop_fetch(task, TaskFacts(stopped=True, trip=task.watch.trip)):
            return False
        self.link.stop(task.key, grace_seconds)
        task.dirty = True
        return True

    def _save_stops(self, stopped: Iterable[AgentTask | None]) -> None:
        """Write stops down and say why once all are told, because a disk must keep none waiting."""
        for told, why in self._unsaid:
            log.info(f"stopping: {why}", extra=told.about(grace_seconds=told.stop_grace))
        self._unsaid.clear()
        for task in stopped:
            if task is not None:
                self.table.save_changed(task, read_boottime())

    def _lose(self, key: TaskKey) -> bool:
        self.claims.drop(key)
        task = self.table.get(key)
        if task is None or not task.live or task.watch.trip is not None:
            return False
        if task.state is AgentTaskState.SAVING:
            self.checkpoints.let_go(key)  # the controller will not take its checkpoints
            return True
        task.watch.lease_lost(read_boottime())
        self._tick_unwatched(task)
        if task.state is not AgentTaskState.RUNNING:
            if self._stop_fetch(task, TaskFacts(trip=task.watch.trip)):
                return True
            task.saved.kill_sent = True
            self.link.stop(key, 0.0)
        self.watching.poke()
        return True

    def _tick_unwatched(self, task: AgentTask) -> None:
        """Have the watch decide now, where the runner does not tick it because it does not run."""
        if task.state not in (AgentTaskState.RUNNING, AgentTaskState.SAVING):
            task.watch.tick(read_boottime())
