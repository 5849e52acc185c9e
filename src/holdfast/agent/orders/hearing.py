"""Carry out the guardian's answers: take over the tasks of an earlier agent, note starts and ends.

Every answer may come twice, or after others were lost (HEAR-1). An answer that does not fit the
task's state any more is ignored.
"""

import logging
from dataclasses import dataclass

from holdfast.agent.abilities import Hindrances
from holdfast.agent.containers.tasks import ContainerTasks
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.link import GuardianLink
from holdfast.agent.orders.commands import Commands
from holdfast.agent.orders.ends import TaskEnds
from holdfast.agent.orders.resync import find_missed
from holdfast.agent.orders.starts import TaskStarts
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import AgentTask
from holdfast.agent.uplink.checkpoints import CheckpointTransfers
from holdfast.agent.uplink.logs import LogShipper
from holdfast.agent.watch.kills import Kills
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.process.syscalls import read_boottime
from holdfast.wire.guardian import Snapshot, TaskEnded, TaskStarted, TaskStatus

log = logging.getLogger("holdfast.agent.orders.hearing")


@dataclass(eq=False)
class Hearing:
    """Carries out the guardian's answers. hindrances: records what this host lacked to start a
    task."""

    table: TaskTable
    link: GuardianLink
    commands: Commands
    ends: TaskEnds
    kills: Kills
    containers: ContainerTasks
    checkpoints: CheckpointTransfers
    shipper: LogShipper
    keeper: Housekeeper
    starts: TaskStarts
    hindrances: Hindrances

    def take_over(self, snapshot: Snapshot) -> None:
        """Go on with the tasks of an earlier agent. Their states are derived here, from the
        guardian's snapshot and the saved folders (KEEP-3)."""
        now = read_boottime()
        for status in snapshot.tasks:
            task = self.table.restore(status.key, now)
            if status.ended is not None and task.saved.acked:
                # The earlier agent was killed before its acknowledgement reached the guardian.
                self.link.ack([status.key])
                self.table.drop(task)
            else:
                self._take_status(task, status)
        self.keeper.take_leftovers(now, self.shipper.follow)
        if snapshot.tasks:
            log.info(f"goes on with {len(snapshot.tasks)} tasks")

    def _take_status(self, task: AgentTask, status: TaskStatus) -> None:
        task.pid, task.started_at = status.pid, status.started_at
        task.move(AgentTaskEvent.LAUNCH)
        if status.pid and task.in_container:
            self.containers.follow(task)
        elif status.pid:
            self.starts.go_on(task, status.pid, status.started_at)
        self.shipper.follow(task)
        if status.ended is not None:
            self.ends.begin(task, status.ended)
        elif task.watch.trip is not None or task.saved.over_memory_bytes:
            self.kills.go_on(task)  # an earlier agent died between the verdict and the kill
        else:
            log.info("taken over from an earlier agent", extra=task.about(pid=status.pid))
            self.checkpoints.poke(task)

    def catch_up(self, snapshot: Snapshot) -> None:
        """Process the starts and ends of the snapshot whose messages were lost (HEAR-1)."""
        missed = find_missed(snapshot, self.table, self.link.must_be_held)
        self.link.ack(missed.acked)
        for started in missed.started:
            self.take_start(started)
        for ended in missed.ended:
            self.take_end(ended)
        for task in missed.unheld:
            self.commands.give_up_unheld(task)

    def take_start(self, started: TaskStarted) -> None:
        """Note that the guardian's process of a task runs: the task's own program, or the runner
        of its container, which may have to pull the image first."""
        task = self.table.get(started.key)
        if task is None or task.state is not AgentTaskState.LAUNCHED:
            return
        if task.in_container:
            self.containers.follow(task)
        else:
            self.starts.begin(task, started.pid, started.started_at)

    def take_end(self, ended: TaskEnded) -> None:
        """Note that all processes of a task are gone, and begin its end."""
        if ended.hosts_fault and ended.start_error:
            self.hindrances.note_start(f"it cannot start tasks: {ended.start_error}")
        task = self.table.get(ended.key)
        if task is None:
            self.link.ack([ended.key])  # this agent and the controller are done with it
            return
        if task.state is AgentTaskState.LAUNCHED and task.pid:
            self.starts.begin(task, task.pid, task.started_at)  # it may have been quick (START-1)
        self.ends.begin(task, ended)
