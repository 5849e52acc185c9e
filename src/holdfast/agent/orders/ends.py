"""End tasks: from the guardian's `TaskEnded` to the report of the end to the controller.

`end_task` awaits its steps in this order: the container is gone, the facts are gathered with the
last lines of the log, the GPUs were read for faults, the calls of an executor are reported, the
checkpoints are uploaded, the report is due. `Housekeeper.settle` forgets the task once the
controller has its end and its logs. No step saves the task's state (KEEP-3): the guardian repeats
an end until it is acknowledged, so after a kill at any step the next agent takes the same steps
anew.

FALL-1  If every rank of a gang is on this host and one of them fails by itself, the agent stops the
        others at once. The controller would order the same with its next answer, and its launch
        order said so beforehand (`LaunchOrder.falls_together`). The end of the rank that failed is
        reported no later than the ends of the others, so that it alone is charged (DRAIN-2).
"""

import asyncio
import logging
from dataclasses import dataclass

import msgspec

from holdfast.agent.bundles.setups import read_failure
from holdfast.agent.calls.executors import Executors
from holdfast.agent.calls.places import CallWatches
from holdfast.agent.containers.plan import RunnerStatus
from holdfast.agent.containers.tasks import ContainerTasks, add_container_facts
from holdfast.agent.data.caches import CacheKeeper
from holdfast.agent.data.outputs import OutputsKeeper
from holdfast.agent.departure import Departure
from holdfast.agent.health.checks import HealthChecks
from holdfast.agent.offload import run_aside
from holdfast.agent.orders.commands import Commands
from holdfast.agent.orders.exit_facts import make_facts
from holdfast.agent.orders.fail_on import find_failing_line
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.tasks.task import ENDS_TOLD_SECONDS, YOUNG_TOLD_SECONDS, AgentTask
from holdfast.agent.uplink.checkpoints import CheckpointTransfers, out_path
from holdfast.agent.uplink.logs import STREAMS, LogShipper, read_log_tail
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.uplink.transfers import find_failed_saves
from holdfast.agent.watch.faults import FaultLooks
from holdfast.agent.watch.left_memory import tell_left_memory
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.facts import TaskFacts
from holdfast.core.states import AgentTaskEvent, AgentTaskState
from holdfast.process.syscalls import read_boottime
from holdfast.wire.guardian import TaskEnded

log = logging.getLogger("holdfast.agent.orders.ends")


@dataclass(eq=False)
class TaskEnds:
    """Ends the tasks of this agent. commands: stops the other ranks when one rank fails
    (FALL-1)."""

    table: TaskTable
    containers: ContainerTasks
    faults: FaultLooks
    checkpoints: CheckpointTransfers
    calls: Executors
    places: CallWatches
    caches: CacheKeeper
    outputs: OutputsKeeper
    commands: Commands
    watching: WatchRunner
    shipper: LogShipper
    health: HealthChecks
    departure: Departure
    news: SyncWish

    def begin(self, task: AgentTask, ended: TaskEnded) -> None:
        """Begin to process a task's end; ignore the guardian's repeats of the same end."""
        if task.state.end_heard:
            return
        task.count_time(read_boottime())
        task.move(AgentTaskEvent.END)
        if ended.output:
            task.saved.output = ended.output
            task.dirty = True
        self.table.works.begin(task.key, self.end_task(task, ended))

    async def end_task(self, task: AgentTask, ended: TaskEnded) -> None:
        """Take a task from state `ending` to state `reported`."""
        facts = await self._gather_facts(task, ended)
        if task.order is not None and task.order.executor:
            facts = self.calls.apps.judge_end(task, facts)
        together = task.order is not None and task.order.falls_together
        if together and not facts.succeeded and not facts.stopped:
            task.fell = True
            self.commands.stop_others(task)
            self.shipper.rest()
        facts = await self.faults.add_faults(task, facts)
        if task.order is not None and task.order.executor:
            await self.calls.end(task, facts)
        alone = task.order is None or task.order.world_size == 1
        if not (facts.succeeded and alone):  # otherwise no next attempt could use them
            await self.checkpoints.upload_last(task)
        left = [] if facts.succeeded else await tell_left_memory(task)
        for sentence in (*find_failed_saves(out_path(task)), *left):
            task.add_notice(task.redactor.mask_text(sentence))
        if task.saved.notices:
            notices = (*facts.notices, *task.saved.notices)
            facts = msgspec.structs.replace(facts, notices=notices[:16])
        if together and facts.stopped:
            await self._let_fallen_go_first(task)
        task.end(AgentTaskEvent.REPORT, facts, read_boottime())
        # The end itself is not saved here: the guardian repeats it until it is acknowledged.
        self.table.save_changed(task, read_boottime())
        how = {"exit_code": ended.exit_code, "signal": ended.signal}
        log.info("ended", extra=task.about(**how, stopped=ended.stopped or None))
        if ended.unkillable:
            log.error(
                f"processes {ended.survivors} survive SIGKILL: this host is suspect",
                extra=task.about(),
            )
        self._tell(task)

    async def _let_fallen_go_first(self, task: AgentTask) -> None:
        """Wait until the end of the rank that failed first is reported (FALL-1)."""
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
            host_stops=self.departure.host_stops,
            log_tail="" if ended.exit_code == 0 else read_log_tail(task),
            memory_limit_bytes=task.order.memory_bytes if task.order else 0,
            over_memory_bytes=task.saved.over_memory_bytes,
            rendezvous_port=task.order.master_port if task.order and task.key.rank == 0 else 0,
        )
        if facts.succeeded and task.order is not None and task.order.fail_on:
            facts = await self._judge_output(task, task.order.fail_on, facts)
        failure = None if facts.succeeded or facts.stopped else read_failure(task)
        facts = msgspec.structs.replace(facts, setup_error=failure) if failure else facts
        if container is not None:
            facts = self._add_container(task, ended, facts, container)
        ran = max(0.0, facts.runtime_seconds - task.setup_seconds)
        return msgspec.structs.replace(facts, runtime_seconds=ran)

    def _add_container(
        self, task: AgentTask, ended: TaskEnded, facts: TaskFacts, found: tuple[RunnerStatus, bool]
    ) -> TaskFacts:
        status, unkillable = found
        if status.lost is not None and not status.started_at and task.watch.trip is None:
            asked = None if task.order is None else task.order.runtime
            self.containers.note_unable(asked, status.lost)
        return add_container_facts(facts, ended, status, task, unkillable=unkillable)

    async def _judge_output(self, task: AgentTask, pattern: str, facts: TaskFacts) -> TaskFacts:
        """Return the facts with the line of the output that the job fails on, if any."""
        paths = [task.path_of(stream) for stream in STREAMS]
        line = await run_aside(lambda: find_failing_line(pattern, paths, task.redactor))
        if line is None:
            return facts
        return msgspec.structs.replace(facts, failed_on=line, log_tail=read_log_tail(task))

    def _tell(self, task: AgentTask) -> None:
        """Have the next sync report the end, and the parts of the agent forget the task."""
        self.news.report(within_seconds=self._choose_delay(task))
        self.shipper.hurry()
        self.watching.forget(task.key)
        self.places.forget(task.key)
        if task.order is not None and task.order.outputs:
            self.outputs.poke()
        if task.order is not None and task.order.caches:
            self.caches.poke()
        self._note_health(task)
        self.departure.go_when_empty()

    def _choose_delay(self, task: AgentTask) -> float:
        """Return the seconds for which a task's end waits for the ends of others, to be reported
        with them."""
        if self.table.ends_with_others(task):
            return ENDS_TOLD_SECONDS
        return YOUNG_TOLD_SECONDS if self.table.has_young(read_boottime()) else 0.0

    def _note_health(self, task: AgentTask) -> None:
        facts = task.facts
        if facts is None or facts.stopped or facts.stop_cause is not None or facts.lost is not None:
            return  # it did not end by itself
        self.health.note_end(task.key.job_id, task.attempt, failed=not facts.succeeded)

    async def report_held(self) -> None:
        """Report now every end that waits for an upload, because this host is about to leave."""
        await asyncio.sleep(0)  # an end that came just now begins its steps first
        works, saving = self.table.works, AgentTaskState.SAVING
        held = [works.find(task.key) for task in self.table if task.state is saving]
        self.checkpoints.let_go_all()
        await asyncio.gather(*held, return_exceptions=True)
