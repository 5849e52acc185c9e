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

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from holdfast.agent.containers.desk import ContainerDesk
from holdfast.agent.journal import about
from holdfast.agent.orders.claims import Claims
from holdfast.agent.orders.environment import make_command, make_task_environment
from holdfast.agent.orders.link import GuardianLink
from holdfast.agent.orders.peers import GangPeers, find_peers
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.agent.uplink.checkpoints import CheckpointDesk, in_path, out_path
from holdfast.core.causes import Cause, Watchdog
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.lease import host_deadline
from holdfast.core.watchdogs.verdicts import make_trip
from holdfast.errors import ValidationError
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import ClaimOrder, LaunchOrder, PreemptOrder, SyncAnswer
from holdfast.wire.guardian import LaunchTask

log = logging.getLogger("holdfast.agent.orders.commands")


class TaskPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """What every task of this host shares. host_words: what tasks are told of the host
    (`environment.describe_host`)."""

    host_mark: str
    beat_socket: str
    work_folder: Path
    inherited: Mapping[str, str]
    host_words: Mapping[str, str] = {}


class Commands:
    """Carries out sync answers.

    changed: there is something to report. launched: a task is to be followed by its logs, whether
    it runs or is over already.
    poked: a watch is to be looked at soon. forgotten: a task's end is on record.
    """

    def __init__(
        self,
        table: TaskTable,
        link: GuardianLink,
        places: TaskPlaces,
        *,
        changed: Callable[[], None],
        launched: Callable[[AgentTask], None],
        poked: Callable[[], None],
        forgotten: Callable[[AgentTask], None],
        containers: ContainerDesk,
        checkpoints: CheckpointDesk,
    ) -> None:
        self._table = table
        self._link = link
        self._places = places
        self._changed = changed
        self._launched = launched
        self._poked = poked
        self._forgotten = forgotten
        self._containers = containers
        self._checkpoints = checkpoints
        self.claims = Claims()
        self._peers = GangPeers()
        self.host_id = ""
        self.host_gpus = 0
        self.closing = False
        self.settings_rev = 0

    def carry_out(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """Do what the answer says (SYNC-1). True when any of it was new."""
        news = self._settle([*answer.acked, *(refused.key for refused in answer.refused)])
        renewed = [
            (item.key, host_deadline(started_at, item.ttl_seconds))
            for item in answer.renewed
            if self._is_live(item.key)
        ]
        for key, deadline in renewed:
            self._table.extend(key, deadline)
        self._link.extend(renewed)
        for item in answer.renewed:
            self.claims.extend(item.key, host_deadline(started_at, item.ttl_seconds))
        if not newest:
            return news
        for key in answer.lost:
            news = self._lose(key) or news
        for preempt in answer.preempt:
            news = self._preempt(preempt) or news
        for claim in answer.claim:
            news = self._claim(claim, started_at) or news
        self._peers.learn(answer.gangs)
        for order in answer.launch:
            news = self._launch(order, started_at) or news
        for change in answer.watch:
            task = self._table.get(change.key)
            if task is not None:
                task.watch.change_settings(read_boottime(), change.watch)
                self._poked()
        self.settings_rev = answer.settings_rev
        return news or bool(answer.watch)

    def _is_live(self, key: TaskKey) -> bool:
        task = self._table.get(key)
        return task is not None and task.live

    def _settle(self, keys: list[TaskKey]) -> bool:
        """These ends are on record, or will never be: both are to be forgotten."""
        settled = [
            task for key in keys if (task := self._table.get(key)) is not None and not task.live
        ]
        self._link.ack([task.key for task in settled])
        for task in settled:
            task.saved.acked = True
            self._forgotten(task)
        return bool(settled)

    def _claim(self, order: ClaimOrder, started_at: float) -> bool:
        key = order.key
        deadline = host_deadline(started_at, order.ttl_seconds)
        now = read_boottime()
        if (
            self.closing
            or self._table.get(key) is not None
            or self._table.is_buried(key)
            or deadline <= now
        ):
            return False
        if not self.claims.keep(order, deadline, now):
            return False
        self._changed()
        return True

    def _launch(self, order: LaunchOrder, started_at: float) -> bool:
        key = order.key
        if self._table.get(key) is not None:
            return False
        self.claims.drop(key)
        if self._table.is_buried(key):
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
        except (OSError, ValidationError) as error:
            self._fail_start(key, str(error), now)
            self._changed()
        return True

    def _refuse_buried(self, order: LaunchOrder) -> bool:
        """CMD-1. The controller has forgotten an end it had acknowledged: its database went back in
        time. It is told again that this key is over, or it would offer it for ever and the job
        would stay reserved.
        """
        key = order.key
        log.error(
            "a launch came after the task's end; it is reported as lost",
            extra=about(key, attempt=order.attempt),
        )
        try:
            task = self._table.add_stub(key, read_boottime())
        except ValidationError:
            return False
        task.state = "ended"
        reason = "this attempt had ended here already, and the controller does not know it any more (a restored database?)"
        task.facts = TaskFacts(
            trip=make_trip(Watchdog.LOST_LEASE, reason, {"source": "a launch of an ended task"})
        )
        self._launched(task)
        self._changed()
        return True

    def _start(self, order: LaunchOrder, deadline: float, now: float) -> None:
        if not order.master_port:  # it runs alone, and may still want a rendezvous with itself
            order = msgspec.structs.replace(order, master_port=self.claims.ports.find(now))
        task = self._table.add(msgspec.structs.replace(order, peers=[]), now)
        self._peers.leave(order, task.folder)
        task.deadline = deadline
        out_path(task).mkdir(mode=0o700, exist_ok=True)
        if order.checkpoint is None:
            self._start_task(task, order)
        else:
            self._checkpoints.fetch(task, lambda error: self._start_fetched(task, order, error))

    def _start_fetched(self, task: AgentTask, order: LaunchOrder, error: str | None) -> None:
        """What it starts from is here, or cannot be had (SAVE-3)."""
        if error is not None:
            log.error(
                f"the task is not started: its checkpoint cannot be had: {error}",
                extra=task.about(),
            )
            self._end_unstarted(task, TaskFacts(checkpoint_error=error[:4096]))
            return
        try:
            self._start_task(task, task.order or order)  # which says what was fetched in the end
        except (OSError, ValidationError) as failure:
            self._fail_start(task.key, str(failure), read_boottime())
            self._changed()

    def stop_fetches(self) -> None:
        """This host starts nothing any more."""
        for task in self._table:
            if self._checkpoints.stop_fetch(task.key):
                self._end_unstarted(task, TaskFacts(stopped=True, stop_cause=Cause.HOST_DRAINED))

    def _end_unstarted(self, task: AgentTask, facts: TaskFacts) -> None:
        task.state, task.facts = "ended", facts
        self._launched(task)
        self._changed()

    def _start_task(self, task: AgentTask, order: LaunchOrder) -> None:
        work = self._places.work_folder / order.key.job_id
        work.mkdir(mode=0o700, exist_ok=True)
        boxed = order.image is not None
        env = make_task_environment(
            order,
            {} if boxed else self._places.inherited,
            host_id=self.host_id,
            host_mark=self._places.host_mark,
            beat_socket=self._places.beat_socket,
            work_folder=str(work),
            host_gpus=self.host_gpus,
            peers=find_peers(task.folder),
            host_words=self._places.host_words,
            checkpoint_out=str(out_path(task)),
            checkpoint_in=in_path(task) if order.checkpoint else None,
        )
        argv, cwd = make_command(order), order.cwd or str(work)
        if boxed:  # what the guardian holds is the runner: devices, limits and the working folder are the container's
            try:
                argv = self._containers.prepare(
                    task, order, env, str(work), self._places.beat_socket
                )
            except ValidationError as error:
                self._refuse_start(task, str(error))
                return
            env, cwd = dict(self._places.inherited), str(work)
        self._link.launch(
            LaunchTask(
                key=order.key,
                argv=argv,
                env=env,
                cwd=cwd,
                leads=boxed,
                stdout=str(task.path_of("stdout")),
                stderr=str(task.path_of("stderr")),
                deadline=task.deadline,
                memory_bytes=0 if boxed else order.memory_bytes,
                contain=bool(order.gpus) and not boxed,
                grace_seconds=order.watch.grace_seconds,
                log_disk_bytes=int(order.watch.log_disk_mb * 1024 * 1024),
            )
        )
        log.info(f"launching {order.name}", extra=task.about())
        self._launched(task)

    def _refuse_start(self, task: AgentTask, sentence: str) -> None:
        """What it asks for cannot be had here."""
        log.error(f"the task cannot be started: {sentence}", extra=task.about())
        self._end_unstarted(task, TaskFacts(start_error=sentence[:4096]))

    def _fail_start(self, key: TaskKey, sentence: str, now: float) -> None:
        log.error(f"the task could not be prepared: {sentence}", extra=about(key))
        task = self._table.get(key)
        if task is None:
            try:
                task = self._table.add_stub(key, now)
            except ValidationError:
                return  # not an id: nothing that could be reported would be understood
        task.state = "ended"
        # A full disk is the host's failure: `start_error` alone would charge it to the job.
        task.facts = TaskFacts(
            start_error=sentence[:4096], lost=f"it could not prepare the task: {sentence}"[:4096]
        )
        self._launched(task)

    def give_up(self, task: AgentTask, sentence: str) -> None:
        """What was launched never began: the host's failure, told as such."""
        self._fail_start(task.key, sentence, read_boottime())
        self._changed()

    def _preempt(self, order: PreemptOrder) -> bool:
        self.claims.drop(order.key)
        task = self._table.get(order.key)
        now = read_boottime()
        if task is None:
            try:
                task = self._table.add_stub(order.key, now)
            except ValidationError:
                return False
            task.state = "ended"
            task.facts = TaskFacts(stopped=True)
            self._launched(task)  # its log, too, must be known to have ended
            log.info("told to stop a task that never came here", extra=task.about())
            self._changed()
            return True
        if not task.live:
            return False
        grace_seconds = 0.0 if order.hard else order.grace_seconds
        sooner = task.stop_grace is None or grace_seconds < task.stop_grace
        if task.saved.stop_asked and not sooner:
            return False
        task.saved.stop_asked = True
        task.stop_grace = grace_seconds
        if order.operator_stop:
            task.watch.stop_by_operator(now, order.reason or str(order.cause))
            if task.state != "running":
                task.watch.tick(now)  # only what runs is ticked, and this one must not begin to
            self._poked()
        log.info(
            f"stopping ({order.cause}): {order.reason}",
            extra=task.about(grace_seconds=grace_seconds),
        )
        if self._checkpoints.stop_fetch(order.key):
            self._end_unstarted(task, TaskFacts(stopped=True, trip=task.watch.trip))
            return True
        if task.over and order.hard:
            self._checkpoints.let_go(order.key)
        self._link.stop(order.key, grace_seconds)
        self._table.save(task, now)
        return True

    def _lose(self, key: TaskKey) -> bool:
        self.claims.drop(key)
        task = self._table.get(key)
        if task is None or not task.live or task.watch.trip is not None:
            return False
        if task.over:
            self._checkpoints.let_go(key)  # nobody will take what it saved
            return True
        task.watch.lease_lost(read_boottime())
        if task.state != "running":
            task.watch.tick(read_boottime())  # as above
            if self._checkpoints.stop_fetch(key):
                self._end_unstarted(task, TaskFacts(trip=task.watch.trip))
                return True
            task.saved.kill_sent = True
            self._link.stop(key, 0.0)
        self._poked()
        return True
