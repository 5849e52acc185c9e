"""Make this host's part of each sync: the reports to the controller, and the work on its answer.

AGT-4  A host that a newer incarnation has replaced, or that was terminated, ends its tasks and its
       guardian, because the controller has placed their work on other hosts. A host is replaced
       when its state folder was copied to, or its guardian started on, a second machine.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass, field

from holdfast import errors
from holdfast.agent.abilities import Abilities
from holdfast.agent.calls.apps import AppTrials
from holdfast.agent.departure import Departure
from holdfast.agent.host_facts import FactsReader
from holdfast.agent.link import GuardianLink
from holdfast.agent.orders.commands import Commands
from holdfast.agent.sessions.session_server import SessionServer
from holdfast.agent.tasks.table import TaskTable
from holdfast.agent.uplink.checkpoints import CheckpointTransfers
from holdfast.agent.uplink.identity import Registrar
from holdfast.agent.uplink.log_reads import LogReader
from holdfast.agent.uplink.sync_wish import SyncWish
from holdfast.agent.watch.kills import Kills
from holdfast.agent.watch.runner import WatchRunner
from holdfast.agent.watch.telemetry import Telemetry
from holdfast.agent.watch.usage import UsageMeter
from holdfast.core.gpus import GpuTelemetry
from holdfast.core.host_faults import Hindrance
from holdfast.core.ids import TaskKey
from holdfast.core.readings.usage import RankUsage
from holdfast.core.states import AgentTaskState
from holdfast.errors import Conflict, HoldfastError
from holdfast.process.syscalls import read_boottime
from holdfast.wire.agent import SyncAnswer, TaskReport

log = logging.getLogger("holdfast.agent")

_REFUSALS = (errors.Unauthorized, errors.NotFound, errors.Conflict, errors.Forbidden)
_TAILS_PER_SYNC = 1 << 20  # characters of log tails in one call, far below the limit of its body


@dataclass(eq=False)
class HostSyncWork:
    """Makes the host's side of a sync (`uplink.sync.SyncTaker`).

    deaf_seconds: the longest silence of the guardian during which this host still asks the
    controller to renew the leases of its tasks (HEAR-3).
    """

    table: TaskTable
    link: GuardianLink
    commands: Commands
    kills: Kills
    checkpoints: CheckpointTransfers
    watching: WatchRunner
    log_reader: LogReader
    sessions: SessionServer
    abilities: Abilities
    apps: AppTrials
    telemetry: Telemetry
    usage: UsageMeter
    facts: FactsReader
    registrar: Registrar
    departure: Departure
    news: SyncWish
    deaf_seconds: float
    _held_back: bool = False
    _refusal: str = ""
    _fenced: str = ""
    _unread: list[str] = field(default_factory=list)

    # ---- up

    def make_reports(self) -> list[TaskReport]:
        """Return a report of every task as it is now, without those whose end is acknowledged."""
        now = read_boottime()
        reports, room = [], _TAILS_PER_SYNC
        self._held_back = False
        frozen = self.link.deaf_seconds > self.deaf_seconds
        # Stopped tasks come last, so that the end of the rank that failed is reported first
        # (FALL-1).
        for task in sorted(self.table, key=lambda task: task.saved.stop_asked):
            if task.state is AgentTaskState.ACKNOWLEDGED or (frozen and not task.state.end_heard):
                continue  # HEAR-3
            tail = len(task.facts.log_tail) if task.facts is not None else 0
            if tail > room:
                self._held_back = True  # many failed at once: the rest is reported in the next call
                continue
            room -= tail
            reports.append(task.report(now))
        return reports + self.commands.claims.reports(now)

    def list_faults(self) -> list[Hindrance]:
        """Return the hindrances: parts of this host's work that it cannot do now, with the
        reasons."""
        return [*self.abilities.list_faults(), *self.apps.list_faults()]

    def show_gpus(self) -> list[GpuTelemetry]:
        """Return the readings of the GPUs that were made last."""
        return self.telemetry.show()

    def take_ranks(self) -> list[RankUsage]:
        """Return the readings of tasks that no sync told before."""
        return self.usage.take_readings()

    def say_strain(self) -> str:
        """Return in words what may slow down this host's processes."""
        return self.telemetry.strain

    async def register(self, held: Collection[TaskKey] = ()) -> None:
        """Register this host, or register it again. held: keys of tasks whose containers may
        still run."""
        facts = await self.facts.read()
        try:
            await self.registrar.register(facts, self.list_faults, held)
        except Conflict as error:
            await self.mend(error)

    async def register_when_swept(self) -> None:
        """Register again once no container of an earlier incarnation runs, so that its places
        are free."""
        await self.abilities.freed.wait()
        await self.register()

    # ---- down

    def take_answer(self, answer: SyncAnswer, *, started_at: float, newest: bool) -> bool:
        """Carry out the controller's answer to a sync."""
        if self._held_back:
            self.news.report()
        if answer.unread and answer.unread != self._unread:
            unread = "; ".join(answer.unread)
            log.error(f"the controller cannot read all of this host's reports: {unread}")
        self._unread = answer.unread
        if answer.fenced and answer.fenced != self._fenced:
            log.error(f"this host is in error, and its leases are not renewed: {answer.fenced}")
        self._fenced = answer.fenced
        self.watching.take_excuses(answer.excused, started_at)
        asked = newest and self.log_reader.accept_orders(answer.reads)
        asked = (newest and self.sessions.carry_out(answer.sessions)) or asked
        return self.commands.carry_out(answer, started_at=started_at, newest=newest) or asked

    async def mend(self, error: HoldfastError) -> None:
        """Respond to a refusal of the controller. Tasks run on until their leases end, except by
        AGT-4."""
        if error.code in ("stale_incarnation", "host_ended"):
            self._give_way(error)
        elif isinstance(error, _REFUSALS):
            log.error(f"the controller refuses this host ({error}); registering again")
            await self.register()
        elif str(error) != self._refusal:
            self._refusal = str(error)
            log.error(f"the controller does not take this host's reports: {error}")

    def _give_way(self, error: HoldfastError) -> None:
        """End all tasks of this host and its guardian, because its place is over (AGT-4)."""
        if self.departure.replaced:
            return
        self.departure.replaced = self.commands.closing = True
        self.checkpoints.let_go_all()
        self.commands.stop_fetches()
        log.error(f"this host's place is over, so its tasks end: {error}")
        now = read_boottime()
        for task in self.table:
            if not task.state.end_heard:
                task.watch.lease_lost(now, str(error))
                task.watch.tick(now)
                self.kills.kill(task)
        self.departure.go_when_empty()
