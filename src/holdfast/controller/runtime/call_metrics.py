"""The metrics of calls: the reports of executors to this replica, and the calls that wait."""

from collections.abc import Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from holdfast.store.postgres.calls.values import ExecutorTurn, ExecutorTurned, Feed, RunningCalls

_LOAD = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600, 1800)
_CALL = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 1800)


class CallMetrics:
    """Counters of exchanges, and gauges of feeds set at the scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.ended = Counter(
            "holdfast_calls_ended",
            "Ends of calls taken: result or exception; their rate is calls per second.",
            ("family", "end"),
            registry=registry,
        )
        self.seconds = Histogram(
            "holdfast_call_seconds",
            "Time of calls, by the mean of each report.",
            buckets=_CALL,
            registry=registry,
        )
        self.handed_out = Counter(
            "holdfast_calls_handed_out",
            "Calls given to executors, repeats included.",
            registry=registry,
        )
        self.batches = Counter(
            "holdfast_call_batches",
            "Batches of calls that need a model; warm: their executor had it loaded.",
            ("model", "warm"),
            registry=registry,
        )
        self.load_seconds = Histogram(
            "holdfast_model_load_seconds",
            "Time of loading a model.",
            ("model",),
            buckets=_LOAD,
            registry=registry,
        )
        self.ready = Gauge(
            "holdfast_calls_ready",
            "Calls that wait for an executor.",
            ("family", "model"),
            registry=registry,
        )
        self.oldest = Gauge(
            "holdfast_calls_oldest_seconds",
            "How long the first call in order has waited.",
            ("family", "model"),
            registry=registry,
        )
        self.running = Gauge(
            "holdfast_calls_running",
            "Calls that run: executors that have calls in hand, one call at a time each.",
            ("queue", "family", "model"),
            registry=registry,
        )
        self.executors = Gauge(
            "holdfast_executors",
            "Live executors, as the replica that leads counts them.",
            ("family", "state"),
            registry=registry,
        )

    def count_report(self, turn: ExecutorTurn, turned: ExecutorTurned) -> None:
        """Count one report of an executor, and the answer to that report."""
        report, family = turn.report, turn.family
        recorded = set(turned.recorded)
        for each in report.ends:
            taken = [end for end in each.ends if (each.batch, end.position) in recorded]
            errors = sum(end.error for end in taken)
            self.ended.labels(family, "exception").inc(errors)
            self.ended.labels(family, "result").inc(len(taken) - errors)
            if taken:
                self.seconds.observe(sum(end.seconds for end in taken) / len(taken))
        for load in report.loads:
            self.load_seconds.labels(load.model).observe(load.seconds)
        for batch in turned.batches:
            self.handed_out.inc(len(batch.calls))
            if batch.model is not None:
                warm = "yes" if batch.model == report.loaded else "no"
                self.batches.labels(batch.model, warm).inc()

    def show_feeds(self, feeds: Sequence[Feed], running: Sequence[RunningCalls]) -> None:
        """Set the gauges of waiting and running calls."""
        self.running.clear()
        for found in running:
            family = found.family
            self.running.labels(family.queue, family.name, found.model or "").set(found.calls)
        self.ready.clear()
        self.oldest.clear()
        for feed in feeds:
            labels = (feed.family.name, feed.model or "")
            self.ready.labels(*labels).inc(feed.ready)
            self.oldest.labels(*labels).set(feed.head_age_seconds)
