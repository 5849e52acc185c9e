"""The store on PostgreSQL (14 or newer): the parts, put together. See `store.port.store` for what
each method promises."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import psycopg

from holdfast.core.settings.resolve import Value
from holdfast.errors import Conflict, Unavailable
from holdfast.moves.values import TellDrains
from holdfast.store.postgres.admission import AdmissionPart
from holdfast.store.postgres.checkpoints import CheckpointsPart
from holdfast.store.postgres.connection.hints import HintsPart
from holdfast.store.postgres.connection.migrate import list_migrations
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.drains import DrainsPart
from holdfast.store.postgres.hosts import HostsPart
from holdfast.store.postgres.jobs import JobsPart
from holdfast.store.postgres.logs import LogsPart
from holdfast.store.postgres.members import MembersPart
from holdfast.store.postgres.projects import ProjectsPart
from holdfast.store.postgres.reads import ReadsPart
from holdfast.store.postgres.records import RecordsPart
from holdfast.store.postgres.release import ReleasePart
from holdfast.store.postgres.settings import SettingsPart
from holdfast.store.postgres.sync import SyncPart
from holdfast.store.postgres.upkeep import UpkeepPart
from holdfast.store.postgres.webhooks import WebhooksPart

PING_SECONDS = 1.0


class PostgresStore(
    SettingsPart,
    ProjectsPart,
    JobsPart,
    ReleasePart,
    AdmissionPart,
    HostsPart,
    SyncPart,
    DrainsPart,
    MembersPart,
    RecordsPart,
    LogsPart,
    ReadsPart,
    CheckpointsPart,
    WebhooksPart,
    UpkeepPart,
    HintsPart,
):
    """A `Store` on one database.

    dsn: what libpq takes. max_connections: of the pool; leadership and hints take three more.
    prepare_threshold: None when a pooler in transaction mode stands between (leadership then needs
    a direct dsn).
    environment: the environment's layer of settings, for the two that admission reads itself.
    """

    def __init__(
        self,
        dsn: str,
        *,
        max_connections: int = 8,
        prepare_threshold: int | None = 0,
        call_seconds: float = 30.0,
        environment: Mapping[str, Value] | None = None,
    ) -> None:
        self.session = Session(
            dsn,
            max_connections=max_connections,
            prepare_threshold=prepare_threshold,
            call_seconds=call_seconds,
        )
        self.environment = dict(environment or {})
        self._init_hints()

    async def open(self) -> None:
        """Connect. Raises Unavailable; Conflict when the schema is not this code's."""
        await self.session.open()
        try:
            await self._check_schema()
        except BaseException:
            await self.session.close()
            raise
        self._start_hints()

    async def close(self) -> None:
        """Give up leadership and every connection. Safe to call twice."""
        await self._stop_hints()
        await self.session.close()

    async def ping(self) -> None:
        """See `Store.ping`."""
        await self.session.single(
            lambda tx: tx.value("read_now", {"now": None}), seconds=PING_SECONDS
        )

    async def now(self) -> datetime:
        """The database's clock."""
        return await self.session.single(lambda tx: tx.now(None))

    def watch_drains(self, tell: TellDrains) -> None:
        """See `Store.watch_drains`."""
        self.session.tell_drains = tell

    async def _check_schema(self) -> None:
        async def work(tx: Tx) -> int:
            try:
                cursor = await tx.conn.execute(
                    "select coalesce(max(version), 0) as version from schema_migrations"
                )
            except psycopg.errors.UndefinedTable:
                return 0
            row = await cursor.fetchone()
            if row is None:
                raise Unavailable("the database gave no answer about its schema")
            return int(row["version"])

        version, wanted = await self.session.single(work), len(list_migrations())
        if version < wanted:
            raise Conflict(
                f"the database's schema is version {version} and this Holdfast needs {wanted}; "
                "run `holdfast db migrate`",
                code="schema_old",
            )
        if version > wanted:
            raise Conflict(
                f"the database's schema is version {version}, but this Holdfast knows only up to "
                f"{wanted}; run the newer Holdfast",
                code="schema_newer",
            )
