"""The metrics of pools."""

import contextlib
import functools

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.core.fleet.actions import CycleSummary
from holdfast.core.fleet.records import PoolMoney

_STATES = ("spawning", "active", "terminating", "total")
_SPAWN = (1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1200, 1800)


class FleetMetrics:
    """Counters of this replica's own calls and cycles, and gauges of the last cycle of each
    pool."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter = functools.partial(Counter, registry=registry)
        gauge = functools.partial(Gauge, registry=registry)
        self.creates = counter(
            "holdfast_pool_creates",
            "Machines asked for: made, no_capacity, refused, unknown (no answer).",
            ("pool", "outcome"),
        )
        self.ends = counter("holdfast_pool_ends", "Machines asked to end.", ("pool",))
        self.reaped = counter(
            "holdfast_pool_reaped", "Machines ended that no record asked for.", ("pool",)
        )
        self.failed = counter(
            "holdfast_pool_hosts_failed", "Hosts put in error, by the fault.", ("pool", "fault")
        )
        self.moves = counter(
            "holdfast_pool_moves",
            "What cycles did with hosts: promoted, failed, rented, ended; and tasks reset.",
            ("pool", "move"),
        )
        self.cycles = counter("holdfast_pool_cycles", "Cycles run.", ("pool",))
        self.cycle_failures = counter(
            "holdfast_pool_cycle_failures", "Cycles that decided nothing.", ("pool",)
        )
        self.spawn_seconds = Histogram(
            "holdfast_pool_spawn_seconds",
            "From the intent to the active host.",
            ("pool",),
            buckets=_SPAWN,
            registry=registry,
        )
        self.hosts = gauge(
            "holdfast_pool_hosts",
            "Hosts of a pool: spawning, active, terminating, total.",
            ("pool", "state"),
        )
        self.queued = gauge("holdfast_pool_queued_tasks", "Jobs that wait for a pool.", ("pool",))
        self.usd_per_hour = gauge("holdfast_pool_usd_per_hour", "What a pool costs now.", ("pool",))
        self.spent_today = gauge(
            "holdfast_pool_spent_today_usd", "What a pool cost since midnight UTC.", ("pool",)
        )

    def note_cycle(self, summary: CycleSummary) -> None:
        """Count a cycle and show what it found."""
        pool, status = summary.pool, summary.status
        self.cycles.labels(pool).inc()
        for name in summary.actions.__struct_fields__:
            self.moves.labels(pool, name.removeprefix("hosts_")).inc(getattr(summary.actions, name))
        for name in _STATES:
            self.hosts.labels(pool, name).set(getattr(status, f"{name}_hosts"))
        self.queued.labels(pool).set(status.queued_tasks)

    def note_money(self, money: PoolMoney) -> None:
        """Show the costs of a pool in the metrics."""
        self.usd_per_hour.labels(money.pool).set(money.usd_per_hour)
        self.spent_today.labels(money.pool).set(money.spent_today_usd)

    def forget(self, pool: str) -> None:
        """Remove the gauges of a pool that is gone; its counters stay."""
        with contextlib.suppress(KeyError):  # another replica ran the pool's cycles
            for state in _STATES:
                self.hosts.remove(pool, state)
            for gauge in (self.queued, self.usd_per_hour, self.spent_today):
                gauge.remove(pool)
