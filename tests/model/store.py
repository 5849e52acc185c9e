"""A model of the store: jobs, gangs, tasks, leases, hosts, drains, members and takes, in memory.

The model holds what the protocol's chaos (`tests/protocol`) drives, and nothing else: no calls,
workflows, schedules, pools, logs or tokens, no idempotency keys, parents or hard quotas of jobs. The
model decides by the same moves as the store that ships, on PostgreSQL, and passes the same tests where
it has the same methods (`tests/store/conformance`). Nothing in the model awaits, so each call is one
atomic step, and nothing in it survives the process.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

from holdfast.core.settings.resolve import Value
from tests.model.events import MemoryEvents
from tests.model.hosts import MemoryHosts
from tests.model.jobs.admission import MemoryAdmission
from tests.model.jobs.drains import MemoryDrains
from tests.model.jobs.jobs import MemoryJobs
from tests.model.jobs.leases import MemoryLeases
from tests.model.jobs.members import MemoryMembers
from tests.model.settings import MemorySettings
from tests.model.state import MemoryState


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
