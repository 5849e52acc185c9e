"""The agent: one loop that thinks for a host while its guardian holds the processes.

AGT-1  The agent may be killed, frozen or replaced at any line: what runs is the guardian's, what
       must be remembered is on disk, what must be told is told again (`Snapshot`, unacknowledged
       ends, logs by offset).
AGT-2  A trip ends in the kill, whatever hangs: the kill has a timer of its own, set before
       forensics begin.
AGT-3  An agent without a guardian ends what is left of its tasks and goes; it never runs anything
       by itself.
AGT-4  A host that a newer incarnation has replaced ends its tasks and its guardian: the controller
       has given their work away, and two incarnations of one host cannot both be right. That
       happens when a state folder was copied to, or its guardian started on, a second machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

from holdfast.agent.config import EXIT_BAD_CONFIG, EXIT_DONE, AgentConfig, read_config
from holdfast.agent.containers.desk import ContainerDesk, add_container_facts, read_options
from holdfast.agent.containers.plan import Status
from holdfast.agent.files import make_private_folder
from holdfast.agent.guardian.home import sweep_after_guardian
from holdfast.agent.host_facts import make_probe, read_host_facts
from holdfast.agent.housekeeping import Housekeeper
from holdfast.agent.journal import open_journal
from holdfast.agent.orders.commands import Commands, TaskPlaces
from holdfast.agent.orders.environment import describe_host, inherit_environment
from holdfast.agent.orders.exit_facts import make_facts
from holdfast.agent.orders.guardian_env import Ties, read_ties, wait_for_guardians_end
from holdfast.agent.orders.link import GuardianLink
from holdfast.agent.orders.resync import find_missed
from holdfast.agent.tasks import ENDS_TOLD_SECONDS, START_TOLD_SECONDS, AgentTask, TaskTable
from holdfast.agent.uplink.calls import ControllerCalls
from holdfast.agent.uplink.checkpoints import CheckpointDesk
from holdfast.agent.uplink.http import HttpClient
from holdfast.agent.uplink.identity import Registrar
from holdfast.agent.uplink.logs import LogShipper, read_log_tail
from holdfast.agent.uplink.sync import SyncLoop
from holdfast.agent.uplink.transfers import Transfers
from holdfast.agent.watch.faults import FaultDesk
from holdfast.agent.watch.forensics import ForensicsDesk
from holdfast.agent.watch.runner import WatchRunner
from holdfast.core.causes import Watchdog
from holdfast.core.facts import TaskFacts, Trip
from holdfast.errors import (
    Conflict,
    Forbidden,
    HoldfastError,
    NotFound,
    Unauthorized,
    ValidationError,
)
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import SyncAnswer, TaskReport
from holdfast.wire.guardian import Answer, Snapshot, Stopping, TaskEnded, TaskStarted, TaskStatus

log = logging.getLogger("holdfast.agent")

ALIVE_SECONDS = 2.0
_LAST_LOGS_SECONDS = 3.0
_LEAVE_SECONDS = 3.0
_GUARDIAN_SECONDS = 8.0
_KILL_REPEAT_SECONDS = 5.0
_SETTLE_SECONDS = 2.0
_TAILS_PER_SYNC = 1 << 20  # characters of log tails in one call, far below the limit of its body
_NO_FORENSICS = (Watchdog.LOST_LEASE, Watchdog.OPERATOR_STOP)


class Agent:
    """One agent process."""

    def __init__(self, config: AgentConfig, ties: Ties) -> None:
        self._config = config
        self._ties = ties
        self._over = asyncio.Event()
        self._told = asyncio.Event()
        self._snapshot = asyncio.Event()
        self.line_lost = False  # the line to the guardian ended
        self._host_stops = False
        self._replaced = False
        self._held_back = False
        self._refusal = ""
        self._unread: list[str] = []
        self._table = TaskTable(config.state_path)
        self._client = HttpClient(config.url, ca_file=config.ca_file)
        self._calls = ControllerCalls(self._client)
        self._registrar = Registrar(
            self._calls,
            config.host_path,
            url=config.url,
            incarnation=ties.incarnation,
            token_file=config.join_token_file,
        )
        self._probe = make_probe(config)
        transfers = Transfers(
            config.url,
            ca_file=config.ca_file,
            incarnation=ties.incarnation,
            token=lambda: self._calls.token,
        )
        self._checkpoints = CheckpointDesk(self._table, transfers)
        self._watching = WatchRunner(
            self._table,
            self._probe,
            trip=self._end_by_trip,
            first_beat=self._report,
            saved=self._checkpoints.poke,
        )
        self._shipper = LogShipper(self._calls, self._settle)
        self._work_folder = config.state_path / "work"
        self._keeper = Housekeeper(self._table, self._work_folder)
        self._forensics = ForensicsDesk(self._calls, self._probe)
        self._faults = FaultDesk(self._probe, self._table, self._hold)
        self._containers = ContainerDesk(
            config.state_path / "containers",
            mark=ties.host_mark,
            options=read_options(os.environ),
            begun=self._begin,
        )
        self._sync = SyncLoop(
            self._calls,
            self,
            incarnation=ties.incarnation,
            interval_seconds=self._registrar.identity.sync_interval_seconds,
            settings_rev=lambda: self._commands.settings_rev,
        )
        self._asides: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until told to go. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._take_word)
        loop.add_signal_handler(signal.SIGINT, lambda: None)  # Ctrl-C is the guardian's to answer
        self._table.open()
        make_private_folder(self._work_folder)
        self._link = await GuardianLink.open(
            self._ties.guardian_fd, self._hear, self._lose_line, incarnation=self._ties.incarnation
        )
        places = TaskPlaces(
            host_mark=self._ties.host_mark,
            beat_socket=self._ties.beat_socket,
            work_folder=self._work_folder,
            inherited=inherit_environment(os.environ),
            host_words=describe_host(self._config.host_name, self._config.labels),
        )
        self._commands = Commands(
            self._table,
            self._link,
            places,
            changed=self._report,
            launched=self._shipper.follow,
            poked=self._watching.poke,
            forgotten=self._settle,
            containers=self._containers,
            checkpoints=self._checkpoints,
        )
        loops = [asyncio.create_task(part) for part in (self._say_alive(), self._serve())]
        waiting = asyncio.create_task(self._over.wait())
        await asyncio.wait([waiting, *loops], return_when=asyncio.FIRST_COMPLETED)
        failed = next((part for part in loops if part.done() and part.exception()), None)
        if failed is not None:
            log.error(
                "the agent failed and starts again; its tasks go on", exc_info=failed.exception()
            )
        for part in loops[1:]:
            part.cancel()
        await asyncio.gather(*loops[1:], return_exceptions=True)
        if not self.line_lost and failed is None:
            await self._part()
        loops[0].cancel()
        self._save_all()
        await self._checkpoints.close()
        await self._probe.close()
        self._client.close()
        return EXIT_DONE if failed is None and not self.line_lost else 1

    async def _serve(self) -> None:
        await self._snapshot.wait()
        self._watching.listen(self._ties.beat_fd)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watching.run())
            facts = await read_host_facts(self._config, self._probe)
            self._commands.host_gpus = len(facts.gpus)
            self._containers.gpus = facts.gpus
            await self._containers.sweep(task.key for task in self._table if task.live)
            if not self._registrar.registered:
                await self._register()
            self._commands.host_id = self._registrar.identity.host_id
            self._sync.interval_seconds = self._registrar.identity.sync_interval_seconds
            group.create_task(self._sync.run())
            group.create_task(self._shipper.run())
            group.create_task(self._keeper.run())
            group.create_task(self._checkpoints.run())

    async def _register(self) -> None:
        facts = await read_host_facts(self._config, self._probe)
        try:
            await self._registrar.register(facts)
        except Conflict as error:
            await self.mend(error)

    async def _say_alive(self) -> None:
        while True:
            self._link.say_alive(holding=self._checkpoints.holding)
            await asyncio.sleep(ALIVE_SECONDS)

    # ---- the guardian's word

    def _hear(self, answer: Answer) -> None:
        if isinstance(answer, Snapshot):
            self._take_snapshot(answer)
        elif isinstance(answer, TaskStarted):
            self._take_start(answer)
        elif isinstance(answer, TaskEnded):
            self._take_end(answer)
        elif isinstance(answer, Stopping):
            log.info("the host shuts down; its tasks are being stopped")
            self._host_stops = self._commands.closing = True
            self._commands.stop_fetches()

    def _take_snapshot(self, snapshot: Snapshot) -> None:
        now = read_boottime()
        if self._snapshot.is_set():
            self._catch_up(snapshot)
            return
        for status in snapshot.tasks:
            task = self._table.restore(status.key, now)
            self._take_status(task, status)
        self._keeper.take_leftovers(now, self._shipper.follow)
        if snapshot.tasks:
            log.info(f"goes on with {len(snapshot.tasks)} tasks")
        self._snapshot.set()

    def _catch_up(self, snapshot: Snapshot) -> None:
        missed = find_missed(snapshot, self._table, self._link.must_be_held)
        self._link.ack(missed.acked)
        for started in missed.started:
            self._take_start(started)
        for ended in missed.ended:
            self._take_end(ended)
        for task in missed.unheld:
            self._commands.give_up(
                task, "the guardian does not hold it, though it was told to launch it"
            )

    def _take_status(self, task: AgentTask, status: TaskStatus) -> None:
        task.pid, task.started_at = status.pid, status.started_at
        task.state = "running" if status.pid and not task.in_container else "starting"
        if task.state == "running":
            task.watch.started(status.started_at)
        elif status.pid:
            self._containers.follow(task)
        self._shipper.follow(task)
        if status.ended is not None:
            self._take_end(status.ended)
        elif task.watch.trip is not None:
            self._kill(task)  # an earlier agent died between the verdict and the kill
        else:
            log.info("taken over from an earlier agent", extra=task.about(pid=status.pid))
            self._checkpoints.poke(task)

    def _take_start(self, started: TaskStarted) -> None:
        task = self._table.get(started.key)
        if task is None or task.state != "starting":
            return
        if task.in_container:
            self._containers.follow(
                task
            )  # what runs is the runner; the image may have to be pulled first
        else:
            self._begin(task, started.pid, started.started_at)

    def _begin(self, task: AgentTask, pid: int, started_at: float) -> None:
        """Its process runs."""
        task.state, task.pid, task.started_at = "running", pid, started_at
        task.watch.started(
            started_at
        )  # not written down: the guardian tells it to the next agent, too
        self._watching.poke()
        self._faults.begin(task)
        asyncio.get_running_loop().call_later(START_TOLD_SECONDS + 0.002, self._tell_start, task)

    def _tell_start(self, task: AgentTask) -> None:
        if task.live:
            self._report()

    def _take_end(self, ended: TaskEnded) -> None:
        task = self._table.get(ended.key)
        if task is None:
            self._link.ack([ended.key])  # nobody waits for it any more
            return
        if not task.live:
            return
        if task.in_container:
            self._containers.confirm(
                task, lambda status, unkillable: self._end(task, ended, status, unkillable)
            )
        else:
            self._end(task, ended)

    def _end(
        self,
        task: AgentTask,
        ended: TaskEnded,
        container: Status | None = None,
        unkillable: bool = False,
    ) -> None:
        """It is over, and nothing of it is left."""
        facts = make_facts(
            ended,
            trip=task.watch.trip,
            kill_sent=task.saved.kill_sent,
            stop_asked=task.saved.stop_asked,
            host_stops=self._host_stops,
            log_tail="" if ended.exit_code == 0 else read_log_tail(task),
            memory_limit_bytes=task.order.memory_bytes if task.order else 0,
            rendezvous_port=task.order.master_port if task.order and task.key.rank == 0 else 0,
        )
        if container is not None:
            facts = add_container_facts(facts, ended, container, task, unkillable=unkillable)
        self._faults.examine(task, ended, facts)

    def _hold(self, task: AgentTask, ended: TaskEnded, facts: TaskFacts) -> None:
        """All that can be said of its end is known. It is told when what the task saved for the
        next attempt is uploaded."""
        if facts.succeeded and (task.order is None or task.order.world_size == 1):
            self._conclude(task, ended, facts)  # there is no next attempt
            return
        self._checkpoints.settle(task, lambda: self._conclude(task, ended, facts))

    def _conclude(self, task: AgentTask, ended: TaskEnded, facts: TaskFacts) -> None:
        """Tell its end."""
        task.facts, task.state = facts, "ended"
        if self._table.ends_with_others(task):
            asyncio.get_running_loop().call_later(ENDS_TOLD_SECONDS, self._report)
        else:
            self._report()
        self._shipper.hurry()
        self._watching.forget(task.key)
        if task.dirty:  # the end itself is the guardian's to remember until it is acknowledged
            self._table.save(task, read_boottime())
        log.info(
            "ended",
            extra=task.about(
                exit_code=ended.exit_code, signal=ended.signal, stopped=ended.stopped or None
            ),
        )
        if ended.unkillable:
            log.error(
                f"processes {ended.survivors} survive SIGKILL: this host is suspect",
                extra=task.about(),
            )
        if (self._host_stops or self._replaced) and not self._count_live():
            self._finish_stop()

    def _finish_stop(self) -> None:
        if self._replaced:
            log.error("its tasks are ended; the guardian of the replaced incarnation is told to go")
            self._link.ack([task.key for task in self._table])  # nobody will ever take these ends
            os.kill(os.getppid(), signal.SIGTERM)
        else:
            self._over.set()

    def _take_word(self) -> None:
        self._told.set()
        self._over.set()

    def _lose_line(self) -> None:
        self._told.set()
        self.line_lost = True
        self._over.set()

    # ---- the controller's word

    def make_reports(self) -> list[TaskReport]:
        """Every task as it is now; acknowledged ones are no longer mentioned."""
        now = read_boottime()
        reports, room = [], _TAILS_PER_SYNC
        self._held_back = False
        for task in self._table:
            if task.saved.acked:
                continue
            tail = len(task.facts.log_tail) if task.facts is not None else 0
            if tail > room:
                self._held_back = True  # a burst of failures: told in the next call
                continue
            room -= tail
            reports.append(task.report(now))
        return reports + self._commands.claims.reports(now)

    def take_answer(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """Carry out an answer."""
        if self._held_back:
            self._report()
        if answer.unread and answer.unread != self._unread:
            log.error(
                f"the controller cannot read all of this host's reports: {'; '.join(answer.unread)}"
            )
        self._unread = answer.unread
        return self._commands.carry_out(answer, started_at=started_at, newest=newest)

    async def mend(self, error: HoldfastError) -> None:
        """The controller refused this host. Tasks are kept until their leases end, whatever it
        says, but for AGT-4."""
        if error.code == "stale_incarnation":
            self._give_way(error)
        elif isinstance(error, Unauthorized | NotFound | Conflict | Forbidden):
            log.error(f"the controller refuses this host ({error}); registering again")
            await self._register()
        elif str(error) != self._refusal:
            self._refusal = str(error)
            log.error(f"the controller does not take this host's reports: {error}")

    def _give_way(self, error: HoldfastError) -> None:
        if self._replaced:
            return
        self._replaced = self._commands.closing = True
        self._checkpoints.let_go_all()
        self._commands.stop_fetches()
        log.error(
            f"a newer incarnation of this host serves ({error}); ending the tasks of this one"
        )
        now = read_boottime()
        for task in self._table:
            if task.live:
                task.watch.lease_lost(now, "another incarnation of this host has registered")
                task.watch.tick(now)
                self._kill(task)
        if not self._count_live():
            self._finish_stop()

    def _count_live(self) -> int:
        return sum(1 for task in self._table if task.live)

    def _report(self) -> None:
        self._sync.report()

    # ---- the watchdogs' word

    def _end_by_trip(self, task: AgentTask, trip: Trip) -> None:
        if trip.watchdog is Watchdog.OPERATOR_STOP:
            return  # the order that brought it has sent the stop, with its grace
        seconds = task.watch.settings.forensics_seconds
        if trip.watchdog in _NO_FORENSICS or seconds <= 0:
            self._kill(task)
            return
        asyncio.get_running_loop().call_later(seconds + 0.5, self._kill, task)  # AGT-2
        self._aside(self._examine_and_kill(task, trip, seconds))

    async def _examine_and_kill(self, task: AgentTask, trip: Trip, seconds: float) -> None:
        try:
            await self._forensics.gather(task, trip, seconds)
        except Exception:
            log.exception("forensics failed", extra=task.about())
        finally:
            self._kill(task)

    def _kill(self, task: AgentTask) -> None:
        """KILL of the whole tree, repeated until the end is heard."""
        if not task.live:
            return
        if not task.saved.kill_sent:
            task.saved.kill_sent = True
            log.warning("killing it", extra=task.about())
        self._link.stop(task.key, 0.0)
        self._table.save(task, read_boottime())
        asyncio.get_running_loop().call_later(_KILL_REPEAT_SECONDS, self._kill, task)

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        aside = asyncio.create_task(work)
        self._asides.add(aside)
        aside.add_done_callback(self._asides.discard)

    # ---- when a task is done with

    def _settle(self, task: AgentTask) -> None:
        """Forget a task whose end is on record and whose logs are; until then remember on disk how
        far it got."""
        if task.saved.acked and task.saved.shipped_whole:
            self._table.forget(task)
            self._keeper.put_away(task)
        else:
            # Mostly the other half comes in a moment and all of it is deleted. An agent that does
            # not live so long leaves its successor a log to ship again, which changes nothing.
            task.dirty = True
            asyncio.get_running_loop().call_later(_SETTLE_SECONDS, self._save_unsettled, task)

    def _save_unsettled(self, task: AgentTask) -> None:
        if self._table.get(task.key) is task and task.folder.is_dir():
            self._table.save(task, read_boottime())

    def _save_all(self) -> None:
        now = read_boottime()
        for task in self._table:
            if task.dirty and task.folder.is_dir():
                self._table.save(task, now)

    # ---- going

    async def _part(self) -> None:
        """Leave: a plain TERM is an upgrade and changes nothing; a host that shuts down says so and
        ships its last logs."""
        if not self._host_stops:
            return
        self._checkpoints.let_go_all()
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
            log.warning("left before everything was told; the rest is sent by the next agent")
        shipping.cancel()
        await asyncio.gather(shipping, return_exceptions=True)
        try:
            async with asyncio.timeout(_GUARDIAN_SECONDS):
                await self._told.wait()  # or the guardian would think that this agent had crashed
        except TimeoutError:
            pass


def run_agent(config: AgentConfig) -> int:
    """Be the agent of the guardian that started this process. Returns the exit status. Raises
    ValidationError."""
    ties = read_ties(os.environ)
    open_journal(config.host_name, log_format=config.log_format)

    async def serve() -> tuple[int, bool]:
        agent = Agent(config, ties)
        status = await agent.run()
        return status, agent.line_lost

    # Not `asyncio.run`: it waits for the loop's threads, and a name look-up or a stuck read may
    # hold one for long.
    status, line_lost = asyncio.new_event_loop().run_until_complete(serve())
    if line_lost and not wait_for_guardians_end(ties):
        log.error(
            "the line to the guardian ended, but the guardian lives; its tasks go on, and its "
            "next agent with them"
        )
    elif line_lost:
        log.error("the guardian is gone; ending what its tasks left behind")
        survivors = sweep_after_guardian(os.environ)
        if survivors:
            log.error(f"processes {survivors} survive SIGKILL")
    return status


def main(argv: list[str]) -> int:
    """Entry of `python -m holdfast.agent CONFIG`."""
    try:
        if len(argv) != 1:
            raise ValidationError("give the agent's config file; `holdfast agent` does")
        return run_agent(read_config(argv[0]))
    except ValidationError as error:
        print(f"holdfast agent: {error}", file=sys.stderr)
        return EXIT_BAD_CONFIG
