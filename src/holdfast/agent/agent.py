"""The agent: one loop that thinks for a host while its guardian holds the processes.

AGT-1  The agent may be killed, frozen or replaced at any line: the guardian holds the processes, the
       disk holds orders and offsets, and all reports repeat (`Snapshot`, unacknowledged ends, logs
       by offset).
AGT-3  An agent without a guardian ends the remains of its tasks and goes; it never runs anything by
       itself.
AGT-4  A host that a newer incarnation has replaced, or that was terminated, ends its tasks and its
       guardian, because the controller has given their work away. A host is replaced when its state
       folder was copied to, or its guardian started on, a second machine.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Collection

from holdfast import errors
from holdfast.agent.abilities import Abilities
from holdfast.agent.calls.blobs import BlobCarrier
from holdfast.agent.calls.desk import ExecutorDesk
from holdfast.agent.calls.home import find_executor_home
from holdfast.agent.calls.places import CallWatches
from holdfast.agent.calls.rooms import ModelRooms
from holdfast.agent.config import EXIT_DONE, AgentConfig
from holdfast.agent.containers.desk import ContainerDesk, read_options
from holdfast.agent.departure import Departure
from holdfast.agent.ends import TaskEnds
from holdfast.agent.folders import WORK_FOLDER, WorkFolders
from holdfast.agent.health.desk import HealthDesk
from holdfast.agent.host_facts import make_probe, read_host_facts
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.orders.commands import Commands
from holdfast.agent.orders.environment import describe_controller, describe_host, make_inherited
from holdfast.agent.orders.guardian_env import Ties
from holdfast.agent.orders.hearing import Hearing
from holdfast.agent.orders.launches import TaskPlaces
from holdfast.agent.orders.link import GuardianLink
from holdfast.agent.tasks import ENDS_TOLD_SECONDS, AgentTask, TaskTable
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.checkpoints import CheckpointDesk
from holdfast.agent.uplink.http import HttpClient
from holdfast.agent.uplink.identity import Registrar
from holdfast.agent.uplink.log_reads import LogReader
from holdfast.agent.uplink.logs import LogShipper
from holdfast.agent.uplink.self_destruct import end_when_alone
from holdfast.agent.uplink.sync import SyncLoop
from holdfast.agent.uplink.transfers import Transfers
from holdfast.agent.watch.faults import FaultDesk
from holdfast.agent.watch.forensics import ForensicsDesk
from holdfast.agent.watch.kills import Kills
from holdfast.agent.watch.memory import MemoryWatch
from holdfast.agent.watch.runner import WatchRunner
from holdfast.agent.watch.telemetry import Telemetry
from holdfast.core.facts import Trip
from holdfast.core.gpus import Gpu, GpuTelemetry
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.states import AgentTaskState
from holdfast.errors import Conflict, HoldfastError
from holdfast.process.files import make_private_folder
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import HostFacts, SyncAnswer, TaskReport
from holdfast.wire.guardian import Answer, Snapshot, Stopping, TaskEnded, TaskStarted

log = logging.getLogger("holdfast.agent")

ALIVE_SECONDS = 2.0
_REFUSALS = (errors.Unauthorized, errors.NotFound, errors.Conflict, errors.Forbidden)
_LAST_LOGS_SECONDS = 3.0
_LEAVE_SECONDS = 3.0
_GUARDIAN_SECONDS = 8.0
_TAILS_PER_SYNC = 1 << 20  # characters of log tails in one call, far below the limit of its body


class Agent:
    """One agent process. Made inside a running event loop."""

    def __init__(self, config: AgentConfig, ties: Ties) -> None:
        self._config = config
        self._ties = ties
        self._snapshot = asyncio.Event()
        self.line_lost = False  # the line to the guardian ended
        self._replaced = self._held_back = False
        self._refusal = self._fenced = ""
        self._unread: list[str] = []
        url, ca_file, incarnation = config.url, config.ca_file, ties.incarnation
        self._client = HttpClient(url, ca_file=ca_file)
        self._calls = ControllerCalls(self._client)
        self._registrar = Registrar(self._calls, config, incarnation, ties.host_mark)
        self._table = TaskTable(config.state_path, self._registrar.make_token)
        self._departure = Departure(lambda: self._ends.host_stops, self._table.count_live)
        self._probe = make_probe(config)
        asks = {"token": lambda: self._calls.token}
        transfers = Transfers(url, ca_file=ca_file, incarnation=incarnation, **asks)
        self._checkpoints = CheckpointDesk(self._table, transfers)
        self._watching = WatchRunner(
            self._table,
            self._probe,
            trip=self._take_trip,
            first_beat=self._report,
            saved=self._checkpoints.poke,
            look=lambda task, now: self._places.look(task, now),
        )
        self._work_folder = config.state_path / WORK_FOLDER
        self._executors = find_executor_home(config, ties.beat_socket)
        self._works = WorkFolders(self._work_folder)
        self._keeper = Housekeeper(self._table, self._works)
        self._forensics = ForensicsDesk(self._calls, self._probe)
        self._faults = FaultDesk(self._probe, self._table, poke=self._watching.poke)
        self._make_calls()
        self._make_abilities()
        self._ends = TaskEnds(
            self._table,
            containers=self._containers,
            faults=self._faults,
            checkpoints=self._checkpoints,
            keeper=self._keeper,
            reported=self._note_reported,
            calls=self._desk,
        )
        self._shipper = LogShipper(self._calls, self._ends.settle)
        self._calls.answered = self._shipper.note_answer
        self._log_reader = LogReader(self._table, self._calls, config.host_name)
        self._sync = SyncLoop(
            self._calls,
            self,
            incarnation=incarnation,
            interval_seconds=self._registrar.identity.sync_interval_seconds,
            settings_rev=lambda: self._commands.settings_rev,
        )

    def _make_calls(self) -> None:
        """Make the parts that know of executors and their calls."""
        carrier = BlobCarrier(
            self._config.url,
            ca_file=self._config.ca_file,
            folder=self._executors.blobs,
            token=lambda: self._calls.token,
        )
        self._desk = ExecutorDesk(
            self._table,
            self._calls,
            self._ties.incarnation,
            move_blob=carrier.move,
            move_checkpoint=carrier.move_checkpoint,
            kill=lambda task: self._kills.kill(task),
            poked=self._watching.poke,
            find_room=lambda key: self._rooms.find(key),
            greeted=lambda: self._rooms.poke(),
            changed=self._report,
        )
        self._rooms = ModelRooms(
            self._table, self._probe, self._desk.find_declared, changed=self._desk.wake
        )
        self._places = CallWatches(self._desk.find_batch, self._desk.find_limits)

    def _make_abilities(self) -> None:
        """Make the parts that know what this host can do, and what its tasks may take."""
        self._containers = ContainerDesk(
            self._config.state_path / "containers",
            mark=self._ties.host_mark,
            options=read_options(os.environ),
            begun=self._begin,
            unable=lambda reason: self._abilities.note_engine(reason),
        )
        self._abilities = Abilities(
            self._config.state_path,
            self._containers,
            changed=self._report,
            living=lambda: [task.key for task in self._table if task.live],
            freed=self._register,
        )
        self._memory = MemoryWatch(
            self._table, self._ties.guardian_pid, kill=lambda task: self._kills.kill(task)
        )

    async def run(self) -> int:
        """Serve until told to go. Returns the exit status."""
        self._departure.listen()
        self._table.open()
        make_private_folder(self._work_folder)
        self._executors.open()
        self._link = await GuardianLink.open(
            self._ties.guardian_fd, self._hear, self._lose_line, incarnation=self._ties.incarnation
        )
        self._join_to_link()
        alone = end_when_alone(
            self._config.self_destruct_seconds,
            lambda: self._sync.heard_at,
            read_boottime,
            lambda: os.kill(os.getppid(), signal.SIGTERM),
        )
        parts = (self._say_alive(), self._serve(), self._table.works.watch(), alone)
        loops = [asyncio.create_task(part) for part in parts]
        waiting = asyncio.create_task(self._departure.over.wait())
        await asyncio.wait([waiting, *loops], return_when=asyncio.FIRST_COMPLETED)
        failed = next((part for part in loops if part.done() and part.exception()), None)
        if failed is not None:
            error = failed.exception()
            log.error("the agent failed and starts again; its tasks go on", exc_info=error)
        for part in loops[1:]:
            part.cancel()
        await asyncio.gather(*loops[1:], return_exceptions=True)
        if not self.line_lost and failed is None:
            await self._part()
        loops[0].cancel()
        await self._table.works.close()
        self._save_all()
        self._keeper.sweep()
        await self._checkpoints.close()
        await self._probe.close()
        self._client.close()
        return EXIT_DONE if failed is None and not self.line_lost else 1

    def _join_to_link(self) -> None:
        """Make the parts that speak to the guardian. It answers only after this loop has turned."""
        places = TaskPlaces(
            host_mark=self._ties.host_mark,
            beat_socket=self._ties.beat_socket,
            works=self._works,
            inherited=make_inherited(os.environ, self._config),
            executors=self._executors,
            host_words=describe_host(self._config.host_name, self._config.host_labels),
            controller=describe_controller(self._config.url, self._config.ca_file),
        )
        self._commands = Commands(
            self._table,
            self._link,
            places,
            changed=self._report,
            launched=self._shipper.follow,
            poked=self._watching.poke,
            forgotten=self._ends.settle,
            containers=self._containers,
            checkpoints=self._checkpoints,
            unable=self._abilities.note_start,
        )
        self._ends.fell = self._stop_fallen
        self._telemetry = Telemetry(self._probe)
        self._health = HealthDesk(
            self._calls.ask_health,
            self._find_gpus,
            incarnation=self._ties.incarnation,
            folder=self._work_folder,
        )
        self._kills = Kills(self._table, self._link, self._forensics)
        self._hearing = Hearing(
            self._table,
            self._link,
            commands=self._commands,
            ends=self._ends,
            kills=self._kills,
            containers=self._containers,
            checkpoints=self._checkpoints,
            faults=self._faults,
            watching=self._watching,
            shipper=self._shipper,
            keeper=self._keeper,
            changed=self._report,
            unable=self._abilities.note_start,
        )

    async def _serve(self) -> None:
        await self._snapshot.wait()
        self._watching.listen(self._ties.beat_fd)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watching.run())
            group.create_task(self._memory.run())
            await self._desk.open(self._executors.socket)
            facts = await self._read_facts()
            self._commands.host_gpus = len(facts.gpus)
            self._commands.device_words = {g.index: g.word for g in facts.gpus if g.word}
            self._containers.gpus = facts.gpus
            held = self._containers.find_left(self._table)
            await self._abilities.look_first()
            if not self._registrar.registered:
                await self._register(held if self._abilities.is_unswept else ())
            self._commands.host_id = self._registrar.identity.host_id
            self._sync.interval_seconds = self._registrar.identity.sync_interval_seconds
            group.create_task(self._sync.run())
            group.create_task(self._desk.run())
            group.create_task(self._rooms.run())
            group.create_task(self._shipper.run())
            group.create_task(self._log_reader.run())
            group.create_task(self._keeper.run())
            group.create_task(self._faults.run())
            group.create_task(self._abilities.run())
            group.create_task(self._checkpoints.run())
            group.create_task(self._health.run())
            group.create_task(self._telemetry.run())

    async def _find_gpus(self) -> list[Gpu]:
        return (await read_host_facts(self._config, self._probe)).gpus

    async def _read_facts(self) -> HostFacts:
        return await read_host_facts(self._config, self._probe, self._ties.memory_limits)

    async def _register(self, held: Collection[TaskKey] = ()) -> None:
        facts = await self._read_facts()
        try:
            await self._registrar.register(facts, self.list_faults, held)
        except Conflict as error:
            await self.mend(error)

    async def _say_alive(self) -> None:
        while True:
            self._link.say_alive(holding=self._checkpoints.holding)
            await asyncio.sleep(ALIVE_SECONDS)

    # ---- the guardian's answers

    def _hear(self, answer: Answer) -> None:
        if isinstance(answer, Snapshot):
            if self._snapshot.is_set():
                self._hearing.catch_up(answer)
            else:
                self._hearing.take_over(answer)
                self._snapshot.set()
        elif isinstance(answer, TaskStarted):
            self._hearing.take_start(answer)
        elif isinstance(answer, TaskEnded):
            self._hearing.take_end(answer)
        elif isinstance(answer, Stopping):
            log.info("the host shuts down; its tasks are being stopped")
            self._ends.host_stops = self._commands.closing = True
            self._commands.stop_fetches()
            self._desk.let_go()

    def _begin(self, task: AgentTask, pid: int, started_at: float) -> None:
        self._hearing.begin(task, pid, started_at)

    def _take_trip(self, task: AgentTask, trip: Trip) -> None:
        self._kills.take_trip(task, trip)

    def _stop_fallen(self, task: AgentTask) -> None:
        """A rank has fallen whose gang falls with it (FALL-1)."""
        self._commands.stop_others(task)
        self._shipper.rest()

    def _note_reported(self, task: AgentTask) -> None:
        """An end is due in the next sync."""
        together = self._table.ends_with_others(task)
        self._sync.report(within_seconds=ENDS_TOLD_SECONDS if together else 0.0)
        self._shipper.hurry()
        self._watching.forget(task.key)
        self._places.forget(task.key)
        self._note_health(task)
        if self._ends.host_stops or self._replaced:
            self._finish_stop()

    def _note_health(self, task: AgentTask) -> None:
        facts = task.facts
        if facts is None or facts.stopped or facts.stop_cause is not None or facts.lost is not None:
            return  # it did not end by itself
        self._health.note_end(task.key.job_id, task.attempt, failed=not facts.succeeded)

    def _finish_stop(self) -> None:
        """Go once no task lives."""
        if self._table.count_live():
            return
        if self._replaced:
            log.error("its tasks are ended; the guardian of the replaced incarnation is told to go")
            self._link.ack([task.key for task in self._table])  # no controller takes these ends
            os.kill(os.getppid(), signal.SIGTERM)
        else:
            self._departure.over.set()

    def _lose_line(self) -> None:
        self.line_lost = True
        self._departure.go()

    # ---- the controller's answers

    def make_reports(self) -> list[TaskReport]:
        """Every task as it is now; acknowledged ones are no longer mentioned."""
        now = read_boottime()
        reports, room = [], _TAILS_PER_SYNC
        self._held_back = False
        frozen = self._ties.keepers and self._link.deaf_seconds > self._config.frozen_seconds / 2
        # Those that were stopped come last, so that none of them is told before the one that fell.
        for task in sorted(self._table, key=lambda task: task.saved.stop_asked):
            if task.state is AgentTaskState.ACKNOWLEDGED or (frozen and not task.state.end_heard):
                continue  # HEAR-3
            tail = len(task.facts.log_tail) if task.facts is not None else 0
            if tail > room:
                self._held_back = True  # a burst of failures: told in the next call
                continue
            room -= tail
            reports.append(task.report(now))
        return reports + self._commands.claims.reports(now)

    def list_faults(self) -> list[Hindrance]:
        """What a part of this host cannot do now."""
        return [*self._abilities.list_faults(), *self._desk.apps.list_faults()]

    def show_gpus(self) -> list[GpuTelemetry]:
        """The devices as they were last read."""
        return self._telemetry.show()

    def take_answer(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """Carry out an answer."""
        if self._held_back:
            self._report()
        if answer.unread and answer.unread != self._unread:
            unread = "; ".join(answer.unread)
            log.error(f"the controller cannot read all of this host's reports: {unread}")
        self._unread = answer.unread
        if answer.fenced and answer.fenced != self._fenced:
            log.error(f"this host is in error, and its leases are not renewed: {answer.fenced}")
        self._fenced = answer.fenced
        self._watching.take_excuses(answer.excused, started_at)
        asked = newest and self._log_reader.take(answer.reads)
        return self._commands.carry_out(answer, started_at=started_at, newest=newest) or asked

    async def mend(self, error: HoldfastError) -> None:
        """Answer a refusal. Tasks are kept until their leases end, except by AGT-4."""
        if error.code in ("stale_incarnation", "host_ended"):
            self._give_way(error)
        elif isinstance(error, _REFUSALS):
            log.error(f"the controller refuses this host ({error}); registering again")
            await self._register()
        elif str(error) != self._refusal:
            self._refusal = str(error)
            log.error(f"the controller does not take this host's reports: {error}")

    def _give_way(self, error: HoldfastError) -> None:
        """AGT-4."""
        if self._replaced:
            return
        self._replaced = self._commands.closing = True
        self._checkpoints.let_go_all()
        self._commands.stop_fetches()
        log.error(f"this host's place is over, so its tasks end: {error}")
        now = read_boottime()
        for task in self._table:
            if not task.state.end_heard:
                task.watch.lease_lost(now, str(error))
                task.watch.tick(now)
                self._kills.kill(task)
        self._finish_stop()

    def _report(self) -> None:
        self._sync.report()

    # ---- going

    def _save_all(self) -> None:
        now = read_boottime()
        for task in self._table:
            self._table.save_changed(task, now)

    async def _part(self) -> None:
        """Leave: a host that shuts down says so and ships its last logs."""
        if not self._ends.host_stops:
            return
        await self._ends.report_held()
        if self._table.count_live():
            log.warning("goes without a goodbye, because tasks still live here")
            return
        shipping = asyncio.create_task(self._shipper.run())
        self._shipper.hurry()
        try:
            async with asyncio.timeout(_LAST_LOGS_SECONDS):
                if self._registrar.registered and not self._replaced:
                    await self._sync.leave(_LEAVE_SECONDS)
                while self._shipper.behind:
                    await asyncio.sleep(0.02)
                await self._forensics.settle(_LAST_LOGS_SECONDS)
        except TimeoutError:
            log.warning("left before everything was sent; the next agent sends the rest")
        shipping.cancel()
        await asyncio.gather(shipping, return_exceptions=True)
        try:
            async with asyncio.timeout(_GUARDIAN_SECONDS):
                # Or the guardian would think that this agent had crashed.
                await self._departure.told.wait()
        except TimeoutError:
            pass
