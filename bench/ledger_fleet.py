"""A large fleet whose every GPU is held, as rows of the real database, and what a minute of its ledger costs.

One host, one job, its attempt and its task are written by the store; the others are copies of their rows.
Between two minutes each task tells a tally, which another benchmark measures (`bench.cases.ledger`).
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import msgspec
import psycopg

from bench.processes import list_family, sum_cpu_seconds
from holdfast.core.gpus import Gpu
from holdfast.core.ledger.close_minutes import close_span
from holdfast.core.placement.plan import plan_admission
from holdfast.core.spec import JobSpec
from holdfast.moves.values import HostSync, NewJob
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.agent import HostFacts

BEGAN = datetime(2026, 3, 1, 20, 0, tzinfo=UTC)
GPUS = 8
_TABLES = ("ledger_hours", "ledger_days", "ledger_subjects", "ledger_accounts")
# Each task worked most of the minute, waited a little for others, and some of them saved.
_TELL = """
update tasks t set tally_at = %(at)s, beat_at = %(at)s, tally = jsonb_build_object(
  'ms', jsonb_build_object('setting_up', 5000, 'loading', 25000, 'kept', %(minute)s * 58000, 'waiting',
    %(minute)s * 1500, 'checkpointing', (%(minute)s + ascii(t.job_id)) / 10 * 5000),
  'now', 'kept', 'beaten', true, 'first_step', 1, 'step', %(minute)s * 30)
"""


class ClosingCost(msgspec.Struct, frozen=True):
    """Seconds of one closing: of the clock, and of a processor in the leader and in the database."""

    minutes: int
    wall: float
    leader: float
    database: float


class LedgerFleet:
    """`hosts` hosts of 8 GPUs, each GPU held by a task of `gpus` GPUs in jobs of `ranks` tasks."""

    def __init__(self, dsn: str, postmaster: int, hosts: int, gpus: int, ranks: int) -> None:
        self.dsn, self.postmaster = dsn, postmaster
        self.hosts, self.gpus, self.ranks = hosts, gpus, ranks
        self.store = PostgresStore(dsn)
        self.minute = 0

    async def begin(self) -> None:
        """Fill the database."""
        await self.store.open()
        facts = HostFacts(
            name="h0", cpu_slots=64, gpus=[Gpu(index=i) for i in range(GPUS)], memory_bytes=1 << 40
        )
        key = b"h0".ljust(32, b".")
        await self.store.hosts.register_host("h0", key, "incarnation-1", facts, now=BEGAN)
        spec = JobSpec(argv=("train",), gpus=self.gpus, labels={"team": "red"})
        await self.store.jobs.submit_jobs([NewJob(id="j0", spec=spec, queue="gpu")], now=BEGAN)
        snap = await self.store.admission.read_admission(10, now=BEGAN)
        plan = plan_admission(snap.candidates, snap.hosts, snap.headroom, snap.quotas)
        await self.store.leases.reserve_and_offer(plan.placements, {"j0": 3600.0}, (), now=BEGAN)
        (task,) = await self.store.jobs.list_tasks("j0")
        sync = HostSync(
            host_id="h0", incarnation="incarnation-1", live=(task.key,), started=(task.key,)
        )
        await self.store.leases.sync_hosts([sync], now=BEGAN)
        tasks = self.hosts * GPUS // self.gpus
        jobs = tasks // self.ranks
        each_host = GPUS // self.gpus
        with psycopg.connect(self.dsn, autocommit=True) as db:
            _copy(
                db,
                "hosts",
                self.hosts - 1,
                {"id": "'h' || n", "name": "'h' || n", "key_hash": "null"},
            )
            _copy(db, "heartbeats", self.hosts - 1, {"host_id": "'h' || n"})
            _copy(db, "jobs", jobs - 1, {"id": "'j' || n", "place": "n + 100"})
            _copy(db, "attempts", jobs - 1, {"job_id": "'j' || n"})
            _copy(db, "tasks", tasks - 1, {
                "job_id": f"'j' || n / {self.ranks}",
                "rank": f"n % {self.ranks}",
                "host_id": f"'h' || n / {each_host}",
            })  # fmt: skip
            db.execute("vacuum (analyze)")
        assert await self.store.ledger.read_span(now=BEGAN) is None

    async def close(self, minutes: int = 1) -> ClosingCost:
        """Let minutes pass, and close them in one go; return what that cost."""
        self.minute += minutes
        at = BEGAN + timedelta(minutes=self.minute)
        with psycopg.connect(self.dsn, autocommit=True) as db:
            db.execute(_TELL, {"at": at - timedelta(seconds=7), "minute": self.minute})
        server = list_family(self.postmaster)
        began, own, other = time.perf_counter(), time.process_time(), sum_cpu_seconds(server)
        closed = 0
        while (facts := await self.store.ledger.read_span(now=at)) is not None:
            await self.store.ledger.write_ledger(facts, close_span(facts))
            closed += (facts.until_ms - facts.since_ms) // 60_000
        assert closed == minutes, f"{closed} of {minutes} minutes were closed"
        return ClosingCost(
            closed,
            time.perf_counter() - began,
            time.process_time() - own,
            sum_cpu_seconds(list_family(self.postmaster)) - other,
        )

    async def prune(self, at: datetime) -> float:
        """Delete what is old at `at`; return the seconds of a processor that it took the database."""
        began = sum_cpu_seconds(list_family(self.postmaster))
        with psycopg.connect(self.dsn, autocommit=True) as db:
            db.execute("update ledger_cursor set at = %s", (at,))
        assert await self.store.ledger.prune_ledger(2.0, 90.0, now=at) > 0
        return sum_cpu_seconds(list_family(self.postmaster)) - began

    def weigh(self) -> dict[str, int]:
        """Return the bytes of each table of the ledger on disk, with its indexes."""
        with psycopg.connect(self.dsn) as db:
            return {
                table: int(db.execute("select pg_total_relation_size(%s)", (table,)).fetchone()[0])  # type: ignore[index]  # one row
                for table in _TABLES
            }


def _copy(
    db: psycopg.Connection[tuple[object, ...]], table: str, count: int, given: dict[str, str]
) -> None:
    """Copy a table's one row so often; given: column → its value in the copy `n`."""
    names = db.execute(
        "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0 "
        "and not attisdropped and attgenerated = ''",
        (table,),
    ).fetchall()
    kept = [f'"{name}"' for (name,) in names if name not in given]
    columns = ", ".join([*given, *kept])
    values = ", ".join([*given.values(), *kept])
    db.execute(
        f"insert into {table} ({columns}) select {values} from (select * from {table} limit 1) as p, "
        f"generate_series(1, {count}) as n".encode()
    )
