"""Run the agent: the event loop that decides for a host, while its guardian owns the processes.

Its parts are made in an order in which each has the parts that it calls: first the part that
reports (`SyncWish`) and the part that kills (`Kills`, on a line to the guardian that is not open yet),
then the watches, then the parts that start and end tasks, and last the loop that syncs with the
controller. One call goes back: a watch tells the people at a task through the sessions, which are
made after the tasks.

AGT-1  The agent may be killed, frozen or replaced at any line of code: the guardian owns the
       processes, the disk has the orders and offsets, and all reports repeat (`Snapshot`,
       unacknowledged ends, logs by offset).
- An agent without a guardian ends the processes that its tasks left, and exits. It starts no
  task itself.
"""

import asyncio
import logging
import os
import signal

from holdfast.agent.abilities import Abilities, Hindrances
from holdfast.agent.bundles.code import CodeUnpacking
from holdfast.agent.calls.apps import AppTrials
from holdfast.agent.calls.blobs import BlobCarrier
from holdfast.agent.calls.executor_paths import find_executor_paths
from holdfast.agent.calls.executors import Executors
from holdfast.agent.calls.lines import ExecutorLines
from holdfast.agent.calls.places import CallWatches
from holdfast.agent.calls.rooms import ModelRooms
from holdfast.agent.config import EXIT_DONE, AgentConfig
from holdfast.agent.containers.tasks import ContainerTasks, read_options
from holdfast.agent.data.caches import CacheKeeper, HostCaches
from holdfast.agent.data.folders import NamedFolders
from holdfast.agent.data.mounts import HostMounts
from holdfast.agent.data.outputs import OutputsKeeper
from holdfast.agent.data.reader import ReaderGroups
from holdfast.agent.departure import Departure
from holdfast.agent.folders import WORK_FOLDER, WorkFolders
from holdfast.agent.guardian_env import Ties
from holdfast.agent.health.checks import HealthChecks
from holdfast.agent.host_facts import FactsReader, make_probe
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.link import GuardianLink
from holdfast.agent.orders.claims import Claims
from holdfast.agent.orders.commands import Commands
from holdfast.agent.orders.ends import TaskEnds
from holdfast.agent.orders.environment import describe_controller, describe_host, make_inherited
from holdfast.agent.orders.hearing import Hearing
from holdfast.agent.orders.host_sync import HostSyncWork
from holdfast.agent.orders.launches import Launcher, TaskPlaces
from holdfast.agent.orders.starts import TaskStarts
from holdfast.agent.sessions.guardian_line import GuardianSessionLine
from holdfast.agent.sessions.session_server import SessionServer
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.uplink.calls import CALL_SECONDS, ControllerCalls
from holdfast.agent.uplink.checkpoints import CheckpointTransfers
from holdfast.agent.uplink.controllers import KnownControllers
from holdfast.agent.uplink.identity import Registrar
from holdfast.agent.uplink.log_reads import LogReader
from holdfast.agent.uplink.logs import LogShipper
from holdfast.agent.uplink.self_destruct import end_when_alone
from holdfast.agent.uplink.sync import SyncLoop
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.uplink.transfers import SILENCE_SECONDS, Transfers
from holdfast.agent.watch.faults import FaultLooks
from holdfast.agent.watch.forensics import ForensicsSender
from holdfast.agent.watch.kills import Kills
from holdfast.agent.watch.memory import MemoryWatch
from holdfast.agent.watch.runner import WatchRunner
from holdfast.agent.watch.telemetry import Telemetry
from holdfast.agent.watch.usage import UsageMeter
from holdfast.http.addresses import HttpAddress, read_addresses
from holdfast.http.asynchronous import AsyncHttp
from holdfast.http.blocking import BlockingHttp
from holdfast.process.files import make_private_folder
from holdfast.process.syscalls import read_boottime
from holdfast.wire.data.caches import CachesReport
from holdfast.wire.guardian import Answer, Snapshot, Stopping, TaskEnded, TaskStarted

log = logging.getLogger("holdfast.agent")

ALIVE_SECONDS = 2.0
_LAST_LOGS_SECONDS = 3.0
_LEAVE_SECONDS = 3.0
_LAST_OUTPUTS_SECONDS = 50.0  # the guardian holds for 60
_GUARDIAN_SECONDS = 8.0


class Agent:
    """Runs one agent. Has to be made inside a running event loop."""

    def __init__(self, config: AgentConfig, ties: Ties) -> None:
        self._config = config
        self._ties = ties
        self._snapshot = asyncio.Event()
        self._work_folder = config.state_path / WORK_FOLDER
        self._news = SyncWish()
        addresses, ca_file = read_addresses(config.url), config.ca_file
        self._http = AsyncHttp(addresses, ca_file=ca_file, timeout_seconds=CALL_SECONDS)
        self._files = BlockingHttp(addresses, ca_file=ca_file, timeout_seconds=SILENCE_SECONDS)
        self._calls = ControllerCalls(self._http)
        self._controllers: KnownControllers | None = None
        if config.learn_controllers:
            self._controllers = KnownControllers(
                self._calls, addresses, config.state_path, self._learn_controllers
            )
        self._registrar = Registrar(self._calls, config, ties.incarnation, ties.host_mark)
        self._table = TaskTable(config.state_path, self._registrar.make_token)
        self._link = GuardianLink(ties.incarnation)
        self._departure = Departure(self._table, self._link)
        self._hindrances = Hindrances(self._news)
        self._make_watches()
        self._make_tasks()
        self._make_calls()
        self._make_orders()
        self._make_ends()
        self._make_sync()

    def _learn_controllers(self, addresses: list[HttpAddress]) -> None:
        self._http.learn(addresses)
        self._files.learn(addresses)

    def _make_watches(self) -> None:
        """Make the parts that watch tasks, and kill them when a watchdog trips."""
        table, calls, config = self._table, self._calls, self._config
        self._probe = make_probe(config)
        self._forensics = ForensicsSender(calls, self._probe)
        self._kills = Kills(table, self._link, self._forensics)
        self._memory = MemoryWatch(table, self._ties.guardian_pid, kill=self._kills.kill)
        self._transfers = transfers = Transfers(
            self._files, incarnation=self._ties.incarnation, token=lambda: calls.token
        )
        self._checkpoints = CheckpointTransfers(table, transfers)
        self._lines = ExecutorLines()
        self._places = CallWatches(self._lines.find_batch, self._lines.find_limits)
        self._telemetry = telemetry = Telemetry(self._probe)
        self._usage = UsageMeter(table, self._ties.guardian_pid)
        self._watching = WatchRunner(
            table,
            self._probe,
            trip=self._kills.take_trip,
            first_beat=self._news.report,
            saved=self._checkpoints.poke,
            look=self._places.look,
            tell=lambda task, sentence: self._sessions.tell_users(task.key, sentence),
            idle=lambda task: telemetry.is_idle(task.gpus, task.watch.settings.gpu_idle_percent),
        )
        self._faults = FaultLooks(self._probe, table, poke=self._watching.poke)

    def _make_tasks(self) -> None:
        """Make the parts that begin tasks, keep their files, and judge what this host can do."""
        folder = self._config.state_path
        self._starts = TaskStarts(self._watching, self._faults, self._news)
        self._containers = ContainerTasks(
            folder / "containers",
            mark=self._ties.host_mark,
            options=read_options(os.environ),
            begun=self._starts.begin,
            unable=self._hindrances.note_engine,
        )
        self._abilities = Abilities(
            folder, self._table, self._containers, self._hindrances, self._news
        )
        self._works = WorkFolders(self._work_folder)
        self._code = CodeUnpacking(folder / "code", self._works, self._transfers)
        self._keeper = Housekeeper(self._table, self._works, self._code.sweep)
        limits = self._ties.memory_limits == "group"
        groups = ReaderGroups(self._ties.groups, limits=limits)
        self._outputs = OutputsKeeper(folder / "outputs", self._table, self._transfers, groups)
        self._caches = HostCaches(folder / "caches", self._config.cache_bytes)
        self._cache_keeper = CacheKeeper(self._caches, self._table, self._tell_caches)
        self._shipper = LogShipper(self._calls, self._keeper.forget_recorded)
        self._calls.answered = self._shipper.note_answer
        self._sessions = SessionServer(
            self._table,
            GuardianSessionLine(self._ties.sessions_fd),
            self._http,
            self._calls,
            guardian_pid=self._ties.guardian_pid,
            allowed=self._config.sessions,
        )
        self._log_reader = LogReader(self._table, self._calls, self._config.host_name)

    async def _tell_caches(self, keys: list[str]) -> None:
        report = CachesReport(incarnation=self._ties.incarnation, caches=keys)
        await self._calls.tell_caches(report)

    def _make_calls(self) -> None:
        """Make the parts that serve executors and their calls."""
        calls = self._calls
        self._executor_paths = find_executor_paths(self._config, self._ties.beat_socket)
        self._rooms = ModelRooms(
            self._table, self._probe, self._lines.find_declared, changed=self._lines.wake
        )
        carrier = BlobCarrier(
            self._files, folder=self._executor_paths.blobs, token=lambda: calls.token
        )
        self._executors = Executors(
            self._table,
            calls,
            self._ties.incarnation,
            move_blob=carrier.move,
            move_checkpoint=carrier.move_checkpoint,
            lines=self._lines,
            rooms=self._rooms,
            watching=self._watching,
            kills=self._kills,
            apps=AppTrials(self._news),
        )

    def _make_orders(self) -> None:
        """Make the parts that carry out the controller's orders for tasks."""
        places = TaskPlaces(
            host_mark=self._ties.host_mark,
            beat_socket=self._ties.beat_socket,
            works=self._works,
            inherited=make_inherited(os.environ, self._config),
            executors=self._executor_paths,
            host_words=describe_host(self._config.host_name, self._config.host_labels),
            controller=describe_controller(self._config.url, self._config.ca_file),
            folders=NamedFolders(
                self._caches, HostMounts(self._config.mounts, self._config.state_path / "mounts")
            ),
            outputs=self._outputs,
        )
        claims = Claims()
        self._launcher = Launcher(
            self._table,
            self._link,
            places,
            containers=self._containers,
            checkpoints=self._checkpoints,
            code=self._code,
            shipper=self._shipper,
            hindrances=self._hindrances,
            news=self._news,
            ports=claims.ports,
        )
        self._commands = Commands(
            self._table,
            self._link,
            self._launcher,
            claims=claims,
            checkpoints=self._checkpoints,
            watching=self._watching,
            keeper=self._keeper,
            news=self._news,
        )

    def _make_ends(self) -> None:
        """Make the parts that end tasks, and the part that carries out the guardian's answers."""
        self._facts = FactsReader(self._config, self._probe, self._ties.memory_limits)
        self._health = HealthChecks(
            self._calls.ask_health,
            self._facts.find_gpus,
            incarnation=self._ties.incarnation,
            folder=self._work_folder,
            is_idle=lambda: not self._table.count_live(),
        )
        self._commands.settings_changed = self._health.look_again
        self._ends = TaskEnds(
            self._table,
            containers=self._containers,
            faults=self._faults,
            checkpoints=self._checkpoints,
            calls=self._executors,
            places=self._places,
            caches=self._cache_keeper,
            outputs=self._outputs,
            commands=self._commands,
            watching=self._watching,
            shipper=self._shipper,
            health=self._health,
            departure=self._departure,
            news=self._news,
        )
        self._hearing = Hearing(
            self._table,
            self._link,
            commands=self._commands,
            ends=self._ends,
            kills=self._kills,
            containers=self._containers,
            checkpoints=self._checkpoints,
            shipper=self._shipper,
            keeper=self._keeper,
            starts=self._starts,
            hindrances=self._hindrances,
        )

    def _make_sync(self) -> None:
        """Make the parts that sync with the controller for the host."""
        frozen_seconds = self._config.frozen_seconds / 2 if self._ties.keepers else float("inf")
        self._host_sync = HostSyncWork(
            self._table,
            self._link,
            commands=self._commands,
            kills=self._kills,
            checkpoints=self._checkpoints,
            watching=self._watching,
            log_reader=self._log_reader,
            sessions=self._sessions,
            abilities=self._abilities,
            apps=self._executors.apps,
            telemetry=self._telemetry,
            usage=self._usage,
            facts=self._facts,
            registrar=self._registrar,
            departure=self._departure,
            news=self._news,
            deaf_seconds=frozen_seconds,
        )
        self._sync = SyncLoop(
            self._calls,
            self._host_sync,
            self._news,
            incarnation=self._ties.incarnation,
            interval_seconds=self._registrar.identity.sync_interval_seconds,
            settings_rev=self._commands.show_settings_rev,
        )

    @property
    def line_lost(self) -> bool:
        """Return True if the line to the guardian ended."""
        return self._departure.line_lost

    async def run(self) -> int:
        """Serve until told to leave; return the exit status."""
        self._departure.listen()
        self._table.open()
        make_private_folder(self._work_folder)
        self._executor_paths.open()
        await self._link.open(self._ties.guardian_fd, self._hear, self._departure.lose_line)
        sync = self._sync
        alone = end_when_alone(
            self._config.self_destruct_seconds,
            lambda: sync.heard_at,
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
        if failed is None and not self.line_lost:
            await self._part()
        loops[0].cancel()
        await self._table.works.close()
        self._save_all()
        self._keeper.sweep()
        await self._checkpoints.close()
        await self._probe.close()
        self._http.close()
        self._files.close()
        return EXIT_DONE if failed is None and not self.line_lost else 1

    async def _serve(self) -> None:
        await self._snapshot.wait()
        self._watching.listen(self._ties.beat_fd)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watching.run())
            group.create_task(self._memory.run())
            self._sessions.open()
            await self._executors.open(self._executor_paths.socket)
            facts = await self._facts.read()
            self._launcher.host_gpus = len(facts.gpus)
            self._launcher.device_words = {g.index: g.word for g in facts.gpus if g.word}
            self._containers.gpus = facts.gpus
            held = self._containers.find_left(self._table)
            await self._abilities.look_first()
            if not self._registrar.registered:
                await self._host_sync.register(held if self._abilities.is_unswept else ())
            self._launcher.host_id = self._registrar.identity.host_id
            self._sync.interval_seconds = self._registrar.identity.sync_interval_seconds
            group.create_task(self._host_sync.register_when_swept())
            group.create_task(self._sync.run())
            if self._controllers is not None:
                group.create_task(self._controllers.run())
            group.create_task(self._executors.run())
            group.create_task(self._rooms.run())
            group.create_task(self._shipper.run())
            group.create_task(self._log_reader.run())
            group.create_task(self._keeper.run())
            group.create_task(self._cache_keeper.run())
            group.create_task(self._outputs.run())
            group.create_task(self._faults.run())
            group.create_task(self._abilities.run())
            group.create_task(self._checkpoints.run())
            group.create_task(self._health.run())
            group.create_task(self._telemetry.run())
            group.create_task(self._usage.run())

    async def _say_alive(self) -> None:
        while True:
            self._tell_alive()
            await asyncio.sleep(ALIVE_SECONDS)

    def _tell_alive(self) -> None:
        sends = self._departure.host_stops and self._outputs.busy
        self._link.say_alive(holding=self._checkpoints.holding or sends)

    def _hear(self, answer: Answer) -> None:
        """Carry out an answer of the guardian."""
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
            self._departure.host_stops = self._commands.closing = True
            self._commands.stop_fetches()
            self._executors.let_go()
            self._tell_alive()  # the guardian waits for outputs from here on

    # ---- going

    def _save_all(self) -> None:
        now = read_boottime()
        for task in self._table:
            self._table.save_changed(task, now)

    async def _part(self) -> None:
        """Tell the controller that this agent ends. If the host shuts down, report that and ship
        the last logs."""
        if not self._departure.host_stops:
            return
        await self._ends.report_held()
        if self._table.count_live():
            log.warning("goes without a goodbye, because tasks still live here")
            return
        shipping = asyncio.create_task(self._shipper.run())
        sending = asyncio.create_task(self._outputs.run())
        self._shipper.hurry()
        try:
            async with asyncio.timeout(_LAST_LOGS_SECONDS):
                if self._registrar.registered and not self._departure.replaced:
                    await self._sync.leave(_LEAVE_SECONDS)
                while self._shipper.behind:
                    await asyncio.sleep(0.02)
                await self._forensics.wait_until_sent(_LAST_LOGS_SECONDS)
        except TimeoutError:
            log.warning("left before everything was sent; the next agent sends the rest")
        await self._outputs.wait_until_sent(_LAST_OUTPUTS_SECONDS)
        self._tell_alive()
        shipping.cancel()
        sending.cancel()
        await asyncio.gather(shipping, sending, return_exceptions=True)
        try:
            async with asyncio.timeout(_GUARDIAN_SECONDS):
                # An agent that exits unasked counts as crashed.
                await self._departure.told.wait()
        except TimeoutError:
            pass
