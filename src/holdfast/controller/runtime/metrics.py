"""The metrics of a replica. Gauges are read from the store when scraped; counters count this
replica's own work."""

import functools
from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.controller.runtime.call_metrics import CallMetrics
from holdfast.controller.runtime.fleet_metrics import FleetMetrics
from holdfast.controller.runtime.run_counts import RunCounts
from holdfast.controller.runtime.workflow_metrics import WorkflowMetrics
from holdfast.core.ledger.values import LedgerName
from holdfast.moves.values import Gauges

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FAST = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DRAIN = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15, 30, 45, 60, 120, 300, 600)


class _StoreGauges(Collector):
    """The gauges of one read; nothing is shown from a read that failed."""

    def __init__(self) -> None:
        self.gauges: Gauges | None = None
        self.waiting: Mapping[tuple[str, str], int] = {}

    def collect(self) -> list[GaugeMetricFamily | CounterMetricFamily]:
        found = self.gauges
        if found is None:
            return []
        jobs = GaugeMetricFamily("holdfast_jobs", "Unfinished jobs.", labels=("queue", "state"))
        for (queue, state), count in sorted(found.jobs.items()):
            jobs.add_metric((queue, state), count)
        hosts = GaugeMetricFamily("holdfast_hosts", "Hosts by state.", labels=("state",))
        for state, count in sorted(found.hosts.items()):
            hosts.add_metric((state,), count)
        deliveries = GaugeMetricFamily(
            "holdfast_webhook_backlog",
            "Webhook deliveries that wait (pending) or were given up (dead).",
            labels=("state",),
        )
        for state, count in sorted(found.webhook_deliveries.items()):
            deliveries.add_metric((state,), count)
        held, backing_off = (_sum(self.waiting, c) for c in ("retries_held", "back_off"))
        reserved, draining = (_sum(found.jobs, state) for state in ("reserved", "draining"))
        plain = (
            ("gangs_reserved", "Jobs whose tasks have their places and do not all run yet.", reserved),
            ("gangs_draining", "Jobs being stopped.", draining),
            ("retries_held", "Jobs whose retry a kill switch holds back.", held),
            ("retries_backing_off", "Jobs that wait for the time of their retry.", backing_off),
            ("dead_hosts", "Hosts flagged dead: no heartbeat while work runs there.", found.dead_hosts),
            ("busy_cpu_slots", "CPU slots in use, by live leases.", found.busy_cpu_slots),
            ("busy_gpus", "GPUs under live leases.", found.busy_gpus),
            ("cpu_slots", "CPU slots of hosts that are not terminated.", found.total_cpu_slots),
            ("gpus", "GPUs of hosts that are not terminated.", found.total_gpus),
            ("oldest_queued_seconds", "Age of the oldest queued job.", found.oldest_queued_seconds),
            ("oldest_transaction_seconds", "Age of the database's oldest transaction.",
             found.oldest_transaction_seconds),
        )  # fmt: skip
        ledger = CounterMetricFamily(
            "holdfast_ledger_seconds",
            "Seconds of GPUs and CPU slots by what they were spent on, once their names are settled.",
            labels=("name", "unit"),
        )
        running = GaugeMetricFamily(
            "holdfast_ledger_open_seconds",
            "The same of jobs that have not ended, whose names may change; a job's end moves them there.",
            labels=("name", "unit"),
        )
        for unit in ("gpu", "cpu"):
            for name in LedgerName:  # also those at zero, because a rise from nothing is none
                ledger.add_metric((name, unit), found.ledger_ms.get((unit, name), 0) / 1000)
                running.add_metric((name, unit), found.open_ms.get((unit, name), 0) / 1000)
        return [
            jobs,
            hosts,
            deliveries,
            ledger,
            running,
            *(GaugeMetricFamily(f"holdfast_{n}", text, value=v) for n, text, v in plain),
        ]


def _sum(counts: Mapping[tuple[str, str], int], second: str) -> int:
    return sum(count for key, count in counts.items() if key[1] == second)


class Metrics:
    """A registry of this controller's own, so that two controllers in one process (tests) keep
    theirs apart."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._stored = _StoreGauges()
        self.registry.register(self._stored)
        self._count_syncs()
        self._count_ends()
        self._count_retries()
        self.run_counts = RunCounts(self.registry)
        self.fleet = FleetMetrics(self.registry)
        self.workflows = WorkflowMetrics(self.registry)
        self.calls = CallMetrics(self.registry)
        histogram = functools.partial(Histogram, registry=self.registry)
        counter = functools.partial(Counter, registry=self.registry)
        gauge = functools.partial(Gauge, registry=self.registry)
        self.leading = gauge("holdfast_leading", "1 where this replica runs the loops.")
        self.store_up = gauge("holdfast_store_up", "1 when the last scrape could read the store.")
        self.checkpoints = counter("holdfast_checkpoints", "Checkpoints taken.")
        self.checkpoint_bytes = counter("holdfast_checkpoint_bytes", "Bytes of checkpoints taken.")
        self.webhook_deliveries = counter(
            "holdfast_webhook_deliveries",
            "Tries of webhook deliveries: delivered, failed (tried again), dead.",
            ("outcome",),
        )
        self.loop_seconds = histogram(
            "holdfast_loop_seconds", "Time of one run of a control loop.", ("loop",), buckets=_FAST
        )
        self.loop_failures = counter(
            "holdfast_loop_failures", "Runs of a loop that failed.", ("loop",)
        )
        self.requests = counter(
            "holdfast_http_requests", "Requests answered.", ("method", "route", "status")
        )

    def _count_syncs(self) -> None:
        r = self.registry
        self.syncs = Counter("holdfast_syncs", "Agent syncs answered.", registry=r)
        self.sync_seconds = Histogram(
            "holdfast_sync_seconds",
            "Time of one store call of a batch of syncs.",
            buckets=_FAST,
            registry=r,
        )
        self.sync_batch = Histogram(
            "holdfast_sync_batch_size",
            "Syncs that went to the store together.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
            registry=r,
        )
        self.waiting_polls = Gauge(
            "holdfast_waiting_polls", "Agents' long polls that wait now.", registry=r
        )

    def _count_ends(self) -> None:
        counter = functools.partial(Counter, registry=self.registry)
        self.ended = counter("holdfast_jobs_ended", "Attempts decided.", ("outcome", "cause"))
        self.trips = counter("holdfast_trips", "Watchdog trips reported.", ("watchdog",))
        self.preempted = counter(
            "holdfast_gangs_preempted", "Jobs stopped so that another could start."
        )
        self.members_replaced = counter(
            "holdfast_members_replaced",
            "Members of supervised jobs that another host stands in for.",
            ("cause",),
        )
        self.force_drained = counter(
            "holdfast_gangs_force_drained",
            "Tasks that were killed because their drain took too long.",
        )
        self.drains_begun = counter(
            "holdfast_drains_begun", "Attempts that began to be stopped, by the cause.", ("cause",)
        )
        self.suspects = counter(
            "holdfast_suspects",
            "Ranks named as slow or wrong, and gangs that slowed, by kind.",
            ("kind",),
        )
        self.drains_completed = counter(
            "holdfast_gangs_completed",
            "Drains completed, by what became of the attempt.",
            ("outcome",),
        )
        self.drain_seconds = Histogram(
            "holdfast_gang_drain_seconds",
            "From the beginning of a drain to its completion.",
            buckets=_DRAIN,
            registry=self.registry,
        )

    def _count_retries(self) -> None:
        counter = functools.partial(Counter, registry=self.registry)
        self.retry_scheduled = counter(
            "holdfast_retry_scheduled", "Retries decided, by the cause they follow.", ("cause",)
        )
        self.retry_exhausted = counter(
            "holdfast_retry_exhausted",
            "Jobs that failed with a budget spent, by the last cause.",
            ("cause",),
        )
        self.retry_succeeded = counter(
            "holdfast_retry_succeeded", "Jobs that succeeded after at least one retry."
        )
        self.retry_dispatched = counter(
            "holdfast_retry_dispatched", "Retries put back in their queue."
        )

    def render(
        self,
        gauges: Gauges | None,
        waiting: Mapping[tuple[str, str], int],
        waiting_polls: int,
        leading: bool,
    ) -> bytes:
        """Return the page. waiting: the counts of waiting jobs, as `Store.count_waiting` returns
        them.

        gauges None: the store could not be read, and values that are unknown are left out, never
        shown as zero.
        """
        self._stored.gauges, self._stored.waiting = gauges, waiting
        self.store_up.set(0 if gauges is None else 1)
        self.waiting_polls.set(waiting_polls)
        self.leading.set(1 if leading else 0)
        return generate_latest(self.registry)
