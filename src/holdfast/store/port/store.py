"""The contract of a store, the one place of all state. Both stores pass `tests/store/conformance/`.

STORE-1  A state change and its event are one transaction (outbox): a reader of events never sees
         less than happened.
STORE-2  Every write on behalf of an attempt is guarded by (task, epoch, host incarnation): a write
         that matches no row is stale, and changes nothing (FENCE-1).
STORE-3  An epoch grows with every admission and every completed drain, and is never given twice.
STORE-4  Readers of events never miss one: an event is shown only when no older transaction can
         still commit.
STORE-5  `now` is injectable everywhere; None means the store's own clock. It is never a client's or
         an agent's clock.
"""

from datetime import datetime
from typing import Any, Protocol

from holdfast.moves.values import Gauges
from holdfast.store.port.arrays import ArrayStore
from holdfast.store.port.bundles.bundles import BundleStore
from holdfast.store.port.bundles.outputs import OutputStore
from holdfast.store.port.calls.calls import CallStore
from holdfast.store.port.calls.checkpoints import CallCheckpointStore
from holdfast.store.port.checkpoints import CheckpointStore
from holdfast.store.port.clock import Now
from holdfast.store.port.dependencies import DependencyStore
from holdfast.store.port.events import EventStore
from holdfast.store.port.fleet.health import HealthStore
from holdfast.store.port.fleet.instances import FleetStore
from holdfast.store.port.fleet.telemetry import TelemetryStore
from holdfast.store.port.fleet.views import FleetViews
from holdfast.store.port.hosts import HostStore
from holdfast.store.port.jobs.admission import AdmissionStore
from holdfast.store.port.jobs.drains import DrainStore
from holdfast.store.port.jobs.jobs import JobStore
from holdfast.store.port.jobs.leases import LeaseStore
from holdfast.store.port.jobs.members import MemberStore
from holdfast.store.port.jobs.sessions import SessionStore
from holdfast.store.port.leadership import LeadershipStore
from holdfast.store.port.logs import LogStore
from holdfast.store.port.schedules import ScheduleStore
from holdfast.store.port.settings import SettingsStore
from holdfast.store.port.tokens import TokenStore
from holdfast.store.port.webhooks import WebhookStore
from holdfast.store.port.workflows import WorkflowStore


class Store(Protocol):
    """The ports, and the methods for the whole store.

    Every method of every port raises Unavailable (holdfast.errors) when the store cannot be reached
    or it is not known whether a transaction was committed. It may be called again afterwards.
    """

    admission: AdmissionStore
    arrays: ArrayStore
    bundles: BundleStore
    outputs: OutputStore
    call_checkpoints: CallCheckpointStore
    calls: CallStore
    checkpoints: CheckpointStore
    dependencies: DependencyStore
    drains: DrainStore
    events: EventStore
    fleet: FleetStore
    health: HealthStore
    hosts: HostStore
    jobs: JobStore
    leadership: LeadershipStore
    leases: LeaseStore
    logs: LogStore
    members: MemberStore
    notices: Any  # `store.postgres.notices` is its own contract
    schedules: ScheduleStore
    sessions: SessionStore
    settings: SettingsStore
    telemetry: TelemetryStore
    tokens: TokenStore
    views: FleetViews
    webhooks: WebhookStore
    workflows: WorkflowStore

    async def open(self) -> None:
        """Connect, without a migration of the schema (`store.postgres.connection.migrate`).

        Raises:
            Conflict: the schema is older or newer than this code.
        """

    async def close(self) -> None:
        """Release the lead and close every connection. Safe to call twice."""

    async def ping(self) -> None:
        """Raise Unavailable unless a trivial read works within a second."""

    async def now(self) -> datetime:
        """Return the time of the store's clock."""

    async def read_gauges(self, *, now: Now = None) -> Gauges:
        """Return the metrics of the whole store, from one consistent read."""
