"""The store on PostgreSQL (14 or newer), put together of its parts. The contract of each part's
methods stands in the part's class.

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

from collections import Counter
from collections.abc import Mapping
from datetime import datetime

import psycopg

from holdfast.core.fleet.records import HostCount
from holdfast.core.settings.resolve import Value
from holdfast.core.states import HostState
from holdfast.moves.values import Gauges
from holdfast.store.clock import Now
from holdfast.store.postgres.arrays import PostgresArrays
from holdfast.store.postgres.bundles.bundles import PostgresBundles
from holdfast.store.postgres.bundles.outputs import PostgresOutputs
from holdfast.store.postgres.calls.calls import PostgresCalls
from holdfast.store.postgres.calls.checkpoints import PostgresCallCheckpoints
from holdfast.store.postgres.checkpoints import PostgresCheckpoints
from holdfast.store.postgres.connection.leadership import LEAD_SECONDS, PostgresLeadership
from holdfast.store.postgres.connection.migrate import LEDGER, check_current, read_ledger
from holdfast.store.postgres.connection.pipeline import Statement
from holdfast.store.postgres.connection.session import Clock, Session, Tx
from holdfast.store.postgres.dependencies import PostgresDependencies
from holdfast.store.postgres.events import PostgresEvents
from holdfast.store.postgres.fleet.health import PostgresHealth
from holdfast.store.postgres.fleet.instances import PostgresFleet
from holdfast.store.postgres.fleet.money import PostgresMoney
from holdfast.store.postgres.fleet.telemetry import PostgresTelemetry
from holdfast.store.postgres.fleet.views import PostgresFleetViews
from holdfast.store.postgres.hosts import PostgresHosts
from holdfast.store.postgres.jobs.admission import PostgresAdmission
from holdfast.store.postgres.jobs.drains import PostgresDrains
from holdfast.store.postgres.jobs.forecasts import PostgresForecasts
from holdfast.store.postgres.jobs.jobs import PostgresJobs
from holdfast.store.postgres.jobs.leases import PostgresLeases
from holdfast.store.postgres.jobs.members import PostgresMembers
from holdfast.store.postgres.jobs.placing import warm_up
from holdfast.store.postgres.jobs.sessions import PostgresSessions
from holdfast.store.postgres.jobs.suspects import PostgresSuspects
from holdfast.store.postgres.ledger.ledger import PostgresLedger
from holdfast.store.postgres.logs.appends import PostgresLogs
from holdfast.store.postgres.logs.search import PostgresLogSearch
from holdfast.store.postgres.notices import PostgresNotices
from holdfast.store.postgres.schedules import PostgresSchedules
from holdfast.store.postgres.settings import PostgresSettings
from holdfast.store.postgres.sign_ins import PostgresSignIns
from holdfast.store.postgres.sync.witness import PostgresWitness
from holdfast.store.postgres.tokens import PostgresTokens
from holdfast.store.postgres.webhooks import PostgresWebhooks
from holdfast.store.postgres.workflows import PostgresWorkflows

PING_SECONDS = 1.0


class PostgresStore:
    """The store, on one database: its parts, and the methods for the whole store.

    Every method of every part raises Unavailable (holdfast.errors) when the database cannot be
    reached or it is not known whether a transaction was committed. It may be called again
    afterwards.

    dsn: a connection string of libpq. max_connections: of both pools; leadership, hints and
    second looks need four more. prepare_threshold: None for a pooler in transaction mode. lead_seconds: how long a
    lead lasts without a renewal. warm: new connections plan the statements that place a job at
    once, so that the first job is placed as quickly as later ones; meant for processes that run for
    long. environment: the environment's layer of settings, for the decisions the store makes
    itself.
    """

    def __init__(
        self,
        dsn: str,
        *,
        max_connections: int = 10,
        prepare_threshold: int | None = 0,
        call_seconds: float = 30.0,
        environment: Mapping[str, Value] | None = None,
        lead_seconds: float = LEAD_SECONDS,
        warm: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self.session = session = Session(
            dsn,
            max_connections=max_connections,
            prepare_threshold=prepare_threshold,
            call_seconds=call_seconds,
            clock=clock,
        )
        if warm:
            session.warm_up_with(warm_up)
        self.environment = dict(environment or {})
        self.admission = PostgresAdmission(session, self.environment)
        self.arrays = PostgresArrays(session, self.environment)
        self.forecasts = PostgresForecasts(session)
        self.bundles = PostgresBundles(session)
        self.outputs = PostgresOutputs(session)
        self.call_checkpoints = PostgresCallCheckpoints(session)
        self.calls = PostgresCalls(session)
        self.checkpoints = PostgresCheckpoints(session)
        self.dependencies = PostgresDependencies(session)
        self.drains = PostgresDrains(session, self.environment)
        self.events = PostgresEvents(session)
        self.fleet = PostgresFleet(session, self.environment)
        self.health = PostgresHealth(session)
        self.hosts = PostgresHosts(session)
        self.jobs = PostgresJobs(session, self.environment)
        self.leadership = PostgresLeadership(session, lead_seconds)
        self.leases = PostgresLeases(session, self.environment)
        self.ledger = PostgresLedger(session)
        self.logs = PostgresLogs(session)
        self.log_search = PostgresLogSearch(session)
        self.members = PostgresMembers(session)
        self.money = PostgresMoney(session)
        self.notices = PostgresNotices(session)
        self.schedules = PostgresSchedules(session, self.environment)
        self.sessions = PostgresSessions(session)
        self.settings = PostgresSettings(session)
        self.sign_ins = PostgresSignIns(session)
        self.suspects = PostgresSuspects(session)
        self.telemetry = PostgresTelemetry(session)
        self.tokens = PostgresTokens(session)
        self.views = PostgresFleetViews(session)
        self.webhooks = PostgresWebhooks(session)
        self.witness = PostgresWitness(session)
        self.workflows = PostgresWorkflows(session)

    async def open(self) -> None:
        """Connect, without a migration of the schema (`store.postgres.connection.migrate`).

        Raises:
            Conflict: the schema is older or newer than this code.
        """
        await self.session.open()
        try:
            await self.session.single(_check_schema)
        except BaseException:
            await self.session.close()
            raise
        self.leadership.start()

    async def close(self) -> None:
        """Release the lead and close every connection. Safe to call twice."""
        await self.leadership.stop()
        await self.witness.close()
        await self.session.close()

    async def ping(self) -> None:
        """Raise Unavailable unless a trivial read works within a second."""
        await self.session.single(lambda tx: tx.value("read_now", now=None), seconds=PING_SECONDS)

    async def now(self) -> datetime:
        """Return the time of the store's clock."""
        return await self.session.single(lambda tx: tx.now(None))

    async def read_gauges(self, *, now: Now = None) -> Gauges:
        """Return the metrics of the whole store, from one consistent read."""
        return await self.session.transact(lambda tx: _read_gauges(tx, now))


async def _read_gauges(tx: Tx, now: datetime | None) -> Gauges:
    tx.see_one_moment()
    jobs = {(row["queue"], row["state"]): row["count"] for row in await tx.rows("count_jobs")}
    hosts: Counter[str] = Counter()
    counts = await tx.list_of(HostCount, "count_hosts")
    for count in counts:
        hosts[count.state] += count.hosts
    alive = [count for count in counts if count.state is not HostState.TERMINATED]
    return Gauges(
        jobs=jobs,
        hosts=dict(hosts),
        dead_hosts=sum(count.hosts for count in alive if count.dead),
        busy_cpu_slots=sum(count.busy_cpu_slots for count in counts),
        busy_gpus=sum(count.busy_gpus for count in counts),
        total_cpu_slots=sum(count.cpu_slots for count in alive),
        total_gpus=sum(count.gpus for count in alive),
        oldest_queued_seconds=max(0.0, await tx.value("gauge_oldest_queued", now=now)),
        oldest_transaction_seconds=await tx.value("gauge_oldest_transaction"),
        webhook_deliveries=await tx.one("count_deliveries") or {},
        ledger_ms={(r["unit"], r["name"]): r["ms"] for r in await tx.rows("read_ledger_totals")},
        open_ms={(r["unit"], r["name"]): r["ms"] for r in await tx.rows("read_ledger_open")},
    )


async def _check_schema(tx: Tx) -> None:
    try:
        (found,) = await tx.conn.run_all((Statement(LEDGER),))
        applied = read_ledger(list(row.values()) for row in found.rows)
    except psycopg.errors.UndefinedTable:
        applied = {}
    check_current(applied)
