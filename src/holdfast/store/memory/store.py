"""A model of the store: jobs, gangs, tasks, leases, hosts, drains, members and takes, in memory.

The model holds what the protocol's chaos (`tests/protocol`) and a simulator of scheduling drive,
and nothing else: no calls, workflows, schedules, pools, logs or tokens. The model decides by
the same moves as the store that ships, on PostgreSQL, and passes the same tests where it has the
same methods (`tests/store/conformance`). Nothing in the model awaits, so each call is one atomic
step, and nothing in it survives the process.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

from holdfast.core.settings.resolve import Value
from holdfast.store.memory.events import MemoryEvents
from holdfast.store.memory.hosts import MemoryHosts
from holdfast.store.memory.jobs.admission import MemoryAdmission
from holdfast.store.memory.jobs.drains import MemoryDrains
from holdfast.store.memory.jobs.jobs import MemoryJobs
from holdfast.store.memory.jobs.leases import MemoryLeases
from holdfast.store.memory.jobs.members import MemoryMembers
from holdfast.store.memory.settings import MemorySettings
from holdfast.store.memory.state import MemoryState


class MemoryStore:
    """The model. `clock` stands for the database's; `environment` as for `PostgresStore`."""

    def __init__(
        self,
        *,
        clock: Callable[[], datetime] | None = None,
        environment: Mapping[str, Value] | None = None,
    ) -> None:
        self.state = state = MemoryState(clock)
        self.environment = dict(environment or {})
        self.members = MemoryMembers(state)
        self.admission = MemoryAdmission(state, self.environment, self.members)
        self.drains = MemoryDrains(state, self.admission)
        self.events = MemoryEvents(state)
        self.hosts = MemoryHosts(state)
        self.jobs = MemoryJobs(state)
        self.leases = MemoryLeases(state, self.admission)
        self.settings = MemorySettings(state)
