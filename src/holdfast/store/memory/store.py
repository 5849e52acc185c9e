"""The store in memory: for tests and for simulation. The same moves as on PostgreSQL, and the same
conformance suite.

Nothing in it awaits, so each call is one atomic step. Nothing in it survives the process.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import Any, cast

from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostState, JobState
from holdfast.errors import Unavailable
from holdfast.moves.values import Gauges
from holdfast.store.memory.arrays import MemoryArrays
from holdfast.store.memory.calls.calls import MemoryCalls
from holdfast.store.memory.calls.checkpoints import MemoryCallCheckpoints
from holdfast.store.memory.checkpoints import MemoryCheckpoints
from holdfast.store.memory.dependencies import MemoryDependencies
from holdfast.store.memory.events import MemoryEvents
from holdfast.store.memory.fleet.health import MemoryHealth
from holdfast.store.memory.fleet.instances import MemoryFleet
from holdfast.store.memory.fleet.telemetry import MemoryTelemetry
from holdfast.store.memory.fleet.views import MemoryFleetViews
from holdfast.store.memory.hosts import MemoryHosts
from holdfast.store.memory.jobs.admission import MemoryAdmission
from holdfast.store.memory.jobs.drains import MemoryDrains
from holdfast.store.memory.jobs.jobs import MemoryJobs
from holdfast.store.memory.jobs.leases import MemoryLeases
from holdfast.store.memory.jobs.members import MemoryMembers
from holdfast.store.memory.jobs.sessions import NoSessions
from holdfast.store.memory.logs import MemoryLogs
from holdfast.store.memory.schedules import MemorySchedules
from holdfast.store.memory.settings import MemorySettings
from holdfast.store.memory.state import MemoryState
from holdfast.store.memory.tokens import MemoryTokens
from holdfast.store.memory.webhooks import MemoryWebhooks
from holdfast.store.memory.workflows import MemoryWorkflows
from holdfast.store.port.bundles.bundles import BundleStore
from holdfast.store.port.bundles.outputs import OutputStore
from holdfast.store.port.clock import Now
from holdfast.store.port.leadership import HintHub
from holdfast.store.port.store import Store


class MemoryLeadership:
    """`LeadershipStore` in one process, which therefore leads."""

    def __init__(self) -> None:
        self._hub = HintHub()

    async def try_lead(self, *, now: Now = None) -> bool:
        return True

    def fenced(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def stop_leading(self) -> None:
        pass

    def hint(self, topic: str) -> None:
        self._hub.deliver(topic)

    def hints(self) -> AsyncIterator[str]:
        return self._hub.listen()


class Absent:
    """A port that only the store in PostgreSQL has: each of its methods raises Unavailable."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        async def refuse(*given: object, **named: object) -> Any:
            raise Unavailable(f"the store in memory keeps no {self._name}")

        return refuse


class MemoryStore(Store):
    """A `Store` in memory. `clock` stands for the database's; `environment` as for
    `PostgresStore`."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] | None = None,
        environment: Mapping[str, Value] | None = None,
    ) -> None:
        self.state = state = MemoryState(clock)
        self.environment = dict(environment or {})
        members = MemoryMembers(state)
        self.admission = MemoryAdmission(state, self.environment, members)
        self.arrays = MemoryArrays(state, self.environment)
        self.bundles = cast(BundleStore, Absent("bundles"))
        self.outputs = cast(OutputStore, Absent("outputs"))
        self.calls = calls = MemoryCalls(state)
        self.call_checkpoints = MemoryCallCheckpoints(calls)
        self.checkpoints = MemoryCheckpoints(state)
        self.dependencies = MemoryDependencies(state)
        self.events = MemoryEvents(state)
        self.fleet = MemoryFleet(state, self.environment)
        self.health = MemoryHealth(state)
        self.hosts = MemoryHosts(state)
        self.jobs = jobs = MemoryJobs(state, self.environment)
        self.leadership = MemoryLeadership()
        self.leases = MemoryLeases(state, self.admission, self.jobs)
        self.drains = MemoryDrains(state, self.admission)
        self.logs = MemoryLogs(state)
        self.members = members
        self.notices = cast(Any, Absent("notice targets"))
        self.schedules = MemorySchedules(state, jobs)
        self.sessions = NoSessions()
        self.settings = MemorySettings(state)
        self.telemetry = MemoryTelemetry(state)
        self.tokens = MemoryTokens(state)
        self.views = MemoryFleetViews(state)
        self.webhooks = MemoryWebhooks(state)
        self.workflows = MemoryWorkflows(state)

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def ping(self) -> None:
        pass

    async def now(self) -> datetime:
        return self.state.clock()

    async def read_gauges(self, *, now: Now = None) -> Gauges:
        s, at = self.state, self.state.at(now)
        hosts: dict[str, int] = {}
        for host in s.hosts.values():
            hosts[str(host.state)] = hosts.get(str(host.state), 0) + 1
        alive = [h for h in s.hosts.values() if h.state is not HostState.TERMINATED]
        live = [t for ranks in s.tasks.values() for t in ranks.values() if t.state.holds_lease]
        queued = [s.jobs[i].row.queued_at or at for i in s.by_state[JobState.QUEUED]]
        return Gauges(
            jobs=await self.jobs.count_jobs(),
            hosts=hosts,
            dead_hosts=sum(h.flagged_dead_at is not None for h in alive),
            busy_cpu_slots=sum(t.cpu_slots for t in live),
            busy_gpus=sum(len(t.devices) for t in live),
            total_cpu_slots=sum(h.cpu_slots for h in alive),
            total_gpus=sum(len(h.gpus) for h in alive),
            oldest_queued_seconds=max(0.0, (at - min(queued)).total_seconds()) if queued else 0.0,
            oldest_transaction_seconds=0.0,
            webhook_deliveries=await self.webhooks.count_deliveries(),
        )
