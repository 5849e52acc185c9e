"""How a task ends: from the guardian's `TaskEnded` to the report, and until it can be forgotten.

`end_task` awaits its steps in this order: the container is gone, the facts are gathered with the
last lines of the log, the devices have been asked, the calls of an executor are told of, the
checkpoints are uploaded, the report is due.
`settle` forgets the task once the controller has its end and its logs. No step writes the task's
state down (KEEP-3): the guardian repeats an end until it is acknowledged, so after a kill at any
step the next agent takes the same steps anew.

FALL-1  Where every rank of a gang is on this host, one that ends badly by itself has the others
        stopped at once, as the controller's order would a call later: its decision is known
        beforehand (`LaunchOrder.falls_together`). The end that began it is reported no later than
        theirs, so that it alone is charged (DRAIN-2).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from holdfast.agent.calls.desk import ExecutorDesk
from holdfast.agent.containers.desk import ContainerDesk, add_container_facts
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.orders.exit_facts import make_facts
from holdfast.agent.tasks import AgentTask, TaskTable
from holdfast.agent.uplink.checkpoints import CheckpointDesk
from holdfast.agent.uplink.logs import read_log_tail
from holdfast.agent.watch.faults import FaultDesk
from holdfast.core.facts import TaskFacts
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.process.syscalls import read_boottime
from holdfast.wire.guardian import TaskEnded

log = logging.getLogger("holdfast.agent.ends")

_SETTLE_SECONDS = 2.0


@dataclass(eq=False)
class TaskEnds:
    """Ends the tasks of this agent. `reported` is called when an end is due in the next sync, `fell`
    when a rank has fallen whose gang is to be stopped."""

    table: TaskTable
    containers: ContainerDesk
    faults: FaultDesk
    checkpoints: CheckpointDesk
    keeper: Housekeeper
    reported: Callable[[AgentTask], None]
    calls: ExecutorDesk
    fell: Callable[[AgentTask], None] = lambda task: None
    host_stops: bool = False
    _half_settled: set[AgentTask] = field(default_factory=set)

    def begin(self, task: AgentTask, ended: TaskEnded) -> None:
        """Start on an end; the guardian's repeats of it are ignored."""
        if task.state.end_heard:
            return
        task.move(AgentTaskEvent.END)
        if ended.output:
            task.saved.output = ended.output
            task.dirty = True
        self.table.works.begin(task.key, self.end_task(task, ended))

    async def end_task(self, task: AgentTask, ended: TaskEnded) -> None:
        """Take a task in `ending` to `reported`."""
        facts = await self._gather_facts(task, ended)
        if task.order is not None and task.order.executor:
            facts = self.calls.apps.judge_end(task, facts)
        together = task.order is not None and task.order.falls_together
        if together and not facts.succeeded and not facts.stopped:
            task.fell = True
            self.fell(task)
        facts = await self.faults.add_faults(task, facts)
        if task.order is not None and task.order.executor:
            await self.calls.end(task, facts)
        alone = task.order is None or task.order.world_size == 1
        if not (facts.succeeded and alone):  # else there is no next attempt that could use them
            await self.checkpoints.upload_last(task)
        if task.saved.notices:
            notices = (*facts.notices, *task.saved.notices)
            facts = msgspec.structs.replace(facts, notices=notices[:16])
        if together and facts.stopped:
            await self._let_fallen_go_first(task)
        task.end(AgentTaskEvent.REPORT, facts)
        # The end itself is the guardian's to remember until it is acknowledged.
        self.table.save_changed(task, read_boottime())
        how = {"exit_code": ended.exit_code, "signal": ended.signal}
        log.info("ended", extra=task.about(**how, stopped=ended.stopped or None))
        if ended.unkillable:
            log.error(
                f"processes {ended.survivors} survive SIGKILL: this host is suspect",
                extra=task.about(),
            )
        self.reported(task)

    async def _let_fallen_go_first(self, task: AgentTask) -> None:
        """Wait for the end that began this one (FALL-1)."""
        fallen = [o for o in self.table.list_others(task) if o.fell and o.live]
        if fallen:
            await asyncio.wait([self.table.works.find(other.key) for other in fallen])

    async def _gather_facts(self, task: AgentTask, ended: TaskEnded) -> TaskFacts:
        container = await self.containers.confirm_gone(task) if task.in_container else None
        facts = make_facts(
            ended,
            trip=task.watch.trip,
            kill_sent=task.saved.kill_sent,
            stop_asked=task.saved.stop_asked,
            host_stops=self.host_stops,
            log_tail="" if ended.exit_code == 0 else read_log_tail(task),
            memory_limit_bytes=task.order.memory_bytes if task.order else 0,
            over_memory_bytes=task.saved.over_memory_bytes,
            rendezvous_port=task.order.master_port if task.order and task.key.rank == 0 else 0,
        )
        if container is None:
            return facts
        status, unkillable = container
        if status.lost is not None and not status.started_at and task.watch.trip is None:
            asked = None if task.order is None else task.order.runtime
            self.containers.note_unable(asked, status.lost)
        return add_container_facts(facts, ended, status, task, unkillable=unkillable)

    def settle(self, task: AgentTask) -> None:
        """Forget a task whose end and logs are on record; else have the disk know how far it is."""
        if task.state is AgentTaskState.ACKNOWLEDGED and task.saved.shipped_whole:
            self.table.forget(task)
            self._half_settled.discard(task)
            # After the orders of the same answer: a busy disk takes longer than a short task.
            asyncio.get_running_loop().call_soon(self.keeper.put_away, task)
            return
        # Mostly the other half comes in a moment and all of it is deleted. An agent that is killed
        # before leaves the next one a log to ship again, which changes nothing.
        task.dirty = True
        if not self._half_settled:
            asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._save_half_settled)
        self._half_settled.add(task)

    def _save_half_settled(self) -> None:
        """One timer saves all: with one for each short task, the loop's timers cost more than the
        tasks."""
        saved, self._half_settled = self._half_settled, set()
        for task in saved:
            self.table.save_changed(task, read_boottime())

    async def report_held(self) -> None:
        """Report now every end that waits for an upload: this host goes."""
        await asyncio.sleep(0)  # an end that was heard just now takes its steps first
        works, saving = self.table.works, AgentTaskState.SAVING
        held = [works.find(task.key) for task in self.table if task.state is saving]
        self.checkpoints.let_go_all()
        await asyncio.gather(*held, return_exceptions=True)
